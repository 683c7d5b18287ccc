"""TVM 0.17: graphs of Relay, kernels by `tvm.tir`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import DataType, TVMError, relay, te, tir, topi
from tvm._ffi.base import _LIB, check_call
from tvm.arith import Analyzer
from tvm.ir import Attrs
from tvm.relay import Expr, TensorType, TupleType, Type, const
from tvm.relay import Tuple as tuple_of
from tvm.relay import TupleWrapper as results
from tvm.relay.op import op as registry
from tvm.runtime import convert
from tvm.target import override_native_generic_func
from tvm.te.hybrid import script
from tvm.tir import PrimExpr
from tvm.tir.ir_builder import BufferVar, IRBuilder

from .kept import built

__all__ = [
    "Analyzer",
    "Attrs",
    "BufferVar",
    "DataType",
    "Expr",
    "IRBuilder",
    "PrimExpr",
    "TVMError",
    "TensorType",
    "TupleType",
    "Type",
    "address_of",
    "are_same",
    "as_bits",
    "assertion",
    "atomic",
    "call",
    "compiled",
    "const",
    "convert",
    "dtype_of",
    "empty",
    "gpu_of",
    "is_registered",
    "libraries_of",
    "memory_at",
    "put_before",
    "register_function",
    "register_operator",
    "results",
    "script",
    "shape_of",
    "shared_extent",
    "storage_sync",
    "stream_of",
    "synchronize",
    "te",
    "tir",
    "topi",
    "trailing_zeros",
    "tuple_of",
    "view",
    "zeros_like",
]

MAX_KNOWN = 10_000  # types per operator: more than any network has


# --- kernels


def dtype_of(value: Any) -> str:
    """The type of an expression, or of the elements of a buffer or tensor, such as "float32x4"."""
    return value.dtype


def view(ib: IRBuilder, buffer: tir.Buffer, shape: Sequence[Any]) -> BufferVar:
    """The memory of a buffer as one of another shape."""
    return ib.buffer_ptr(tir.decl_buffer(shape, buffer.dtype, buffer.name, data=buffer.data))


def memory_at(ib: IRBuilder, pointer: tir.Var, dtype: str) -> BufferVar:
    """The memory that a function is given the address of."""
    return ib.buffer_ptr(tir.decl_buffer((1,), dtype, pointer.name, data=pointer))


def storage_sync(scope: str) -> tir.Stmt:
    """A barrier for the threads that share memory of this scope."""
    return tir.Evaluate(tir.Call(None, "tir.tvm_storage_sync", [tir.StringImm(scope)]))


def assertion(condition: tir.PrimExpr, message: str) -> tir.Stmt:
    """A check at run time. It holds no body: TVM takes minutes to draw conclusions from it there."""
    return tir.AssertStmt(condition, tir.StringImm(message), tir.Evaluate(tir.const(0)))


def atomic(dtype: str, name: str, place: tir.PrimExpr, value: Any) -> tir.PrimExpr:
    """CUDA's atomic function of this name; its result is what was at the place before."""
    return tir.call_extern(dtype, f"atomic{name}", tir.address_of(place), value)


def as_bits(conditions: tir.PrimExpr) -> tir.PrimExpr:
    """The bits of an unsigned integer, one for each lane of a vector of truth values, for LLVM."""
    return tir.reinterpret(f"uint{DataType(conditions.dtype).lanes}", conditions)


def trailing_zeros(word: tir.PrimExpr) -> tir.PrimExpr:
    """The number of bits of an uint64 below its lowest set one, for LLVM."""
    arguments = tir.const(2, "uint32")  # their number
    return tir.call_llvm_pure_intrin("uint64", "llvm.cttz.i64", arguments, word, tir.const(False, "bool"))


# --- targets


def libraries_of(target: tvm.target.Target) -> list[str]:
    """The libraries that may compute operators, `-libs` in the target."""
    return list(target.libs)


# --- functions that compiled code calls, or that are called as they are


def compiled(function: tir.PrimFunc, llvm: tvm.target.Target) -> Callable[..., None]:
    """A function whose arguments do not overlap, for this machine's processor."""
    target = tvm.target.Target(llvm, host=llvm)
    function = function.with_attr({"global_symbol": "main", "tir.noalias": True, "target": target})
    return built(tvm.IRModule({"main": function}), target)["main"]


def register_function(name: str) -> Callable[[Callable], Callable]:
    """Register the function that is decorated. TVM keeps it if its module is imported again."""
    return tvm.register_func(name, override=True)


def are_same(function: tvm.runtime.PackedFunc, other: tvm.runtime.PackedFunc) -> bool:
    """Whether two functions of TVM are one: each look at the registry has an object of its own."""
    return function.handle.value == other.handle.value


def put_before(name: str, native: ctypes.CDLL) -> Any:
    """Register a C function in the place of a registered one, which it gets to call.

    Returns what has to be kept.
    """
    native.use_tvm(ctypes.cast(_LIB.TVMFuncCall, ctypes.c_void_p))
    registered, handle = tvm.get_global_func(name), ctypes.c_void_p()
    function = native.call_again_in_relay
    check_call(_LIB.TVMFuncCreateFromCFunc(function, registered.handle, None, ctypes.byref(handle)))
    check_call(_LIB.TVMFuncRegisterGlobal(name.encode(), handle, 1))
    return registered


def address_of(tensor: tvm.nd.NDArray) -> int:
    """The address of the first element. Every call needs it, and this is faster than DLPack."""
    array = tensor.handle.contents
    return array.data + array.byte_offset


def shape_of(tensor: tvm.nd.NDArray) -> tuple[int, ...]:
    """The shape, in less time than TVM takes."""
    array = tensor.handle.contents
    return tuple(array.shape[: array.ndim])


def gpu_of(tensor: tvm.nd.NDArray) -> int:
    """The number of the device that a tensor is on."""
    return tensor.handle.contents.device.device_id


def empty(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> tvm.nd.NDArray:
    return tvm.nd.empty(shape, dtype, device)


def stream_of(_device: tvm.runtime.Device) -> Callable[[], int]:
    """What tells the thread's current stream on a GPU."""
    current_stream = tvm.get_global_func("runtime.get_cuda_stream")
    return lambda: current_stream().value or 0


def synchronize(device: tvm.runtime.Device, stream: int) -> None:
    """Wait for a stream."""
    device.sync(ctypes.c_void_p(stream))  # a plain int would lose half its bits


# --- graphs


def call(operator: str, arguments: Sequence[Expr], /, **attributes: Any) -> Expr:
    """A call of a registered operator."""
    attrs = tvm.ir.make_node("DictAttrs", **attributes)
    return relay.Call(relay.op.get(operator), arguments, attrs)


def zeros_like(value: Expr, dtype: str) -> Expr:
    return relay.cast(relay.zeros_like(value), dtype)


def shared_extent(_operator: str, extents: Sequence[Any]) -> Any:
    """An extent that tensors share. If one of them is unknown, the shape function compares them."""
    return extents[0] if all(isinstance(each, (int, tir.IntImm)) for each in extents) else relay.Any()


# --- operators


def is_registered(name: str) -> bool:
    return name in tvm.ir.Op.list_op_names()


def register_operator(
    name: str,
    description: str,
    arguments: dict[str, str],
    type_relation: Callable,
    shape_function: Callable | None,
    implementation_for: Callable,
    is_variadic: bool = False,
) -> None:
    """Register an operator; see `topi_ext._register.register`. `is_variadic`: any number of arguments."""

    def strategy(
        attrs: Attrs, inputs: Sequence[te.Tensor], _out_type: Type, target: tvm.target.Target
    ) -> registry.OpStrategy:
        compute, kernels = implementation_for(attrs, inputs, target)

        def schedule(_attrs: Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target) -> te.Schedule:
            with target:
                own = getattr(kernels, "schedule", None)
                return own(outs) if own else te.create_schedule([out.op for out in outs])

        result = registry.OpStrategy()
        result.add_implementation(
            lambda _attrs, inputs, _out_type: compute(inputs), schedule, name=f"{name}.{target.kind.name}"
        )
        return result

    registry.register(name, description)
    operator = relay.op.get(name)
    operator.set_num_inputs(-1 if is_variadic else len(arguments))
    for argument, meaning in arguments.items():
        operator.add_argument(argument, "Tensor", meaning)
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(10)
    operator.add_type_rel(name.split(".")[-1], _remembering(type_relation))
    registry.register_pattern(name, registry.OpPattern.OPAQUE)
    if shape_function is not None:
        registry.register_shape_func(name, False, shape_function)
    registry.register_strategy(name, override_native_generic_func(f"{name}.strategy")(strategy))


def _remembering(type_relation: Callable) -> Callable:
    """The type relation with a cache, since TVM infers the type of each call in nearly every pass."""
    known: dict[tuple[Attrs, int], tuple[Sequence[Type], Type]] = {}

    def remembering(types: Sequence[Type], attrs: Attrs) -> Type | None:
        key = attrs, tvm.ir.structural_hash(types)  # the attributes of a call stay the same object
        of_types, result = known.get(key, (None, None))
        if of_types is not None and tvm.ir.structural_equal(of_types, types):
            return result
        result = type_relation(types, attrs)
        if result is not None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[key] = types, result
        return result

    return remembering
