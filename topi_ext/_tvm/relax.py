"""TVM 0.27: graphs of Relax, kernels by `tvm.tirx`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ffi import LIB, get_raw_stream, structural_equal, structural_map

import tvm
from tvm import ir, te
from tvm import tirx as tir
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Attrs, Expr
from tvm.runtime import convert
from tvm.sym import Analyzer

from ..bootstrap import tvm_in_use
from .ir_builder import BufferVar, IRBuilder

if tvm_in_use.compiles:
    from tvm import relax, topi
    from tvm.relax import Tuple as tuple_of
    from tvm.relax import const
    from tvm.relax.transform.legalize_ops.common import register_legalize
else:  # compiled code runs, and calls functions that are registered here; there are no graphs
    relax = topi = tuple_of = const = register_legalize = None

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

DataType = tvm.DataType
PrimExpr = Expr  # a number in a kernel; Relax has one class for it and for what a graph computes
TVMError = RuntimeError


# --- kernels


def dtype_of(value: Any) -> str:
    """The type of an expression, or of the elements of a buffer or tensor, such as "float32x4"."""
    is_number = isinstance(value, Expr) and not isinstance(value, te.Tensor)
    dtype = (value.ty if is_number else value).dtype
    return str(dtype.dtype if isinstance(dtype, ir.PrimType) else dtype)


def view(ib: IRBuilder, buffer: tir.Buffer, shape: Sequence[Any]) -> BufferVar:
    """The memory of a buffer as one of another shape."""
    return ib.view(buffer, shape)


def memory_at(ib: IRBuilder, pointer: tir.Var, dtype: str) -> BufferVar:
    """The memory that a function is given the address of."""
    return ib.memory_at(pointer, (1,), dtype, pointer.name)


def storage_sync(scope: str) -> tir.Stmt:
    """A barrier for the threads that share memory of this scope."""
    return tir.Evaluate(ir.Call("tirx.tvm_storage_sync", [ir.StringImm(scope)], ret_ty="void"))


def assertion(condition: Expr, message: str) -> tir.Stmt:
    """A check at run time."""
    return tir.AssertStmt(ir.StringImm("ValueError"), condition, [ir.StringImm(message)])


def atomic(dtype: str, name: str, place: Expr, value: Any) -> Expr:
    """CUDA's atomic function of this name; its result is what was at the place before.

    An uint64 is written as `uint64_t`, an `unsigned long`, for which CUDA has no atomic functions.
    """
    at, name = tir.address_of(place), f"atomic{name}"
    if dtype != "uint64":
        return tir.call_extern(dtype, name, at, value)
    source = (
        f"__forceinline__ __device__ uint64_t topi_ext_{name}(uint64_t* at, uint64_t value) {{\n"
        f"  return {name}((unsigned long long*)at, (unsigned long long)value);\n"
        "}\n"
    )
    return cuda_func_call(f"topi_ext_{name}", at, value, source_code=source, return_type=dtype)


def as_bits(conditions: Expr) -> Expr:
    """The bits of an unsigned integer, one for each lane of a vector of truth values, for LLVM.

    A truth value is a byte here. A product moves the lowest bits of eight bytes into the highest byte.
    """
    lanes = DataType(dtype_of(conditions)).lanes
    dtype, groups = f"uint{lanes}", lanes // 8
    gathering, highest = tir.const(0x0102040810204080, "uint64"), tir.const(56, "uint64")
    words = tir.reinterpret(
        f"uint64x{groups}" if groups > 1 else "uint64", conditions.astype(f"uint8x{lanes}")
    )
    bits = tir.const(0, dtype)
    for group in range(groups):
        word = tir.Shuffle([words], [tir.const(group)]) if groups > 1 else words
        bits = bits | (((word * gathering) >> highest).astype(dtype) << tir.const(8 * group, dtype))
    return bits


def trailing_zeros(word: Expr) -> Expr:
    """The number of bits of an uint64 below its lowest set one."""
    return tir.popcount(~word & (word - tir.const(1, "uint64")))


# --- targets


def libraries_of(target: tvm.target.Target) -> list[str]:
    """The libraries that may compute operators, `-libs` in the target."""
    return list(target.attrs.get("libs", ()))


# --- functions that compiled code calls, or that are called as they are


def compiled(function: tir.PrimFunc, llvm: tvm.target.Target) -> Callable[..., None]:
    """A function whose arguments do not overlap, for this machine's processor."""
    function = function.with_attrs({"global_symbol": "main", "tirx.noalias": True, "tirx.is_scheduled": True})
    return tvm.compile(tvm.IRModule({"main": function}), llvm)["main"]


def register_function(name: str) -> Callable[[Callable], Callable]:
    """Register the function that is decorated. TVM keeps it if its module is imported again."""
    return tvm.register_global_func(name, override=True)


def are_same(function: tvm.runtime.Object, other: tvm.runtime.Object) -> bool:
    """Whether two functions of TVM are one."""
    return bool(function.same_as(other))


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


def put_before(name: str, native: ctypes.CDLL) -> Any:
    """Register a C function in the place of a registered one, which it gets to call.

    Returns what has to be kept.
    """
    native.use_tvm(ctypes.cast(LIB.TVMFFIFunctionCall, ctypes.c_void_p))
    registered, handle = tvm.get_global_func(name), ctypes.c_void_p()
    of_python, encoded = ctypes.c_void_p(registered.__chandle__()), name.encode()
    function, text = native.call_again_in_relax, _Bytes(encoded, len(encoded))
    if LIB.TVMFFIFunctionCreate(of_python, function, None, ctypes.byref(handle)) or (
        LIB.TVMFFIFunctionSetGlobal(ctypes.byref(text), handle, 1)
    ):
        raise RuntimeError(f"{name}: TVM did not register the C function")
    return registered


def address_of(tensor: tvm.runtime.Tensor) -> int:
    """The address of the first element."""
    return tensor.data_ptr()


def shape_of(tensor: tvm.runtime.Tensor) -> tuple[int, ...]:
    """The shape."""
    return tuple(tensor.shape)


def gpu_of(tensor: tvm.runtime.Tensor) -> int:
    """The number of the device that a tensor is on."""
    return tensor.device.index


def empty(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    return tvm.runtime.empty(shape, dtype, device)


def stream_of(device: tvm.runtime.Device) -> Callable[[], int]:
    """What tells the thread's current stream on a GPU."""
    return lambda: get_raw_stream(device)


def synchronize(device: tvm.runtime.Device, stream: int) -> None:
    """Wait for a stream."""
    device.sync(stream)


# --- graphs


@dataclass(frozen=True)
class TensorType:
    """Shape and type of a tensor, as type relations see them on both TVMs."""

    shape: Sequence[Any]
    dtype: str


@dataclass(frozen=True)
class TupleType:
    """The types of the fields of a tuple."""

    fields: Sequence[TensorType | TupleType]


Type = (TensorType, TupleType)


def call(operator: str, arguments: Sequence[Expr], /, **attributes: Any) -> Expr:
    """A call of a registered operator."""
    attrs = ir.make_node("ir.DictAttrs", **attributes)
    return ir.Call(ir.Op.get(operator), arguments, attrs)


def results(call: Expr, _count: int) -> Expr:
    """The results of a call, which are the fields of a tuple."""
    return call


def zeros_like(value: Expr, dtype: str) -> Expr:
    return relax.op.zeros_like(value, dtype)


def script(function: Callable) -> Callable:
    """For shape functions, which Relax does not need: its extents are expressions."""
    return function


def shared_extent(operator: str, extents: Sequence[Any]) -> Any:
    """An extent that tensors share."""
    first = next((each for each in extents if isinstance(each, (int, tir.IntImm))), extents[0])
    for each in extents:
        if not Analyzer().can_prove_equal(first, each):
            raise TVMError(
                f"{operator}: an extent must be equal to another, {first} and {each}; see match_cast"
            )
    return first


# --- operators


def is_registered(name: str) -> bool:
    """Whether there is nothing to register: graphs need a compiler."""
    return not tvm_in_use.compiles or name in ir.Op.list_op_names()


def register_operator(
    name: str,
    description: str,
    arguments: dict[str, str],
    type_relation: Callable,
    _shape_function: Callable | None,
    implementation_for: Callable,
) -> None:
    """Register an operator; see `topi_ext._register.register`."""

    def infer_type(call: ir.Call, _context: relax.BlockBuilder) -> ir.Type:
        found = type_relation([_type_of(argument.ty) for argument in call.args], call.attrs)
        if found is None:
            raise TVMError(f"{name}: the shape and type of each argument must be known")
        return _relax_type(found)

    def legalize(builder: relax.BlockBuilder, call: ir.Call) -> Expr:
        target = tvm.target.Target.current(allow_none=True)
        if target is None:
            raise TVMError(f"{name}: compile it with a target in scope: `with target: tvm.compile(...)`")

        arguments = [field for argument in call.args for field in _fields(argument)]
        extents = _Extents()
        inputs = [
            te.placeholder([extents.as_variable(each) for each in tensor.ty.shape.values], tensor.ty.dtype)
            for tensor in arguments
        ]
        compute, kernels = implementation_for(call.attrs, inputs, target)
        wanted = compute(inputs)
        # All outputs of the kernel, workspaces too: of a workspace that TVM allocates inside the function, it
        # keeps only what it believes to be used.
        outputs = [wanted[0].op.output(at) for at in range(wanted[0].op.num_outputs)]
        # Not by `call_te`, which makes all integers int64, also those whose bits a kernel looks at.
        function = te.create_prim_func([*inputs, *outputs])
        function = getattr(kernels, "schedule_function", lambda as_it_is: as_it_is)(function)
        function = function.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        symbol = builder.add_func(function, name.split(".")[-1])
        types = [
            relax.TensorType([extents.as_given(each) for each in output.shape], output.dtype)
            for output in outputs
        ]
        computed = builder.emit(relax.call_tir(symbol, arguments, types))
        if len(outputs) == 1:
            return computed
        results = [relax.TupleGetItem(computed, each.value_index) for each in wanted]
        return relax.Tuple(results) if isinstance(call.ty, relax.TupleType) else results[0]

    ir._ffi_api.RegisterOp(name, description)
    operator = ir.Op.get(name)
    operator.set_num_inputs(len(arguments))
    for argument, meaning in arguments.items():
        operator.add_argument(argument, "Tensor", meaning)
    operator.set_attrs_type_key("ir.DictAttrs")
    ir.register_op_attr(name, "FInferType", infer_type)
    ir.register_op_attr(name, "FPurity", True)
    register_legalize(name, legalize)


class _Extents:
    """The variables of a kernel for extents that are not numbers."""

    def __init__(self) -> None:
        self._given: dict[tir.Var, Expr] = {}

    def as_variable(self, extent: Expr) -> int | tir.Var:
        """An extent in the kernel: a number, or a variable for each expression."""
        if isinstance(extent, tir.IntImm):
            return int(extent)
        for variable, given in self._given.items():
            if structural_equal(given, extent):
                return variable
        variable = tir.Var(f"extent_{len(self._given)}", dtype_of(extent))
        self._given[variable] = extent
        return variable

    def as_given(self, extent: Expr) -> Expr:
        """An extent of the kernel in the graph."""
        given = structural_map(extent, (tir.Var, lambda variable: self._given[variable]), order="post")
        return given.astype("int64")


def _fields(argument: Expr) -> list[Expr]:
    """The tensors of an argument, which may be a tuple, wherever that comes from."""
    if not isinstance(argument.ty, relax.TupleType):
        return [argument]
    if isinstance(argument, relax.Tuple):
        return list(argument.fields)
    return [relax.TupleGetItem(argument, at) for at in range(len(argument.ty.fields))]


def _type_of(type_: ir.Type) -> TensorType | TupleType | None:
    """What a type relation is given, None for a type that is not known entirely."""
    if isinstance(type_, relax.TupleType):
        fields = [_type_of(field) for field in type_.fields]
        known = [field for field in fields if field is not None]
        return TupleType(known) if len(known) == len(fields) else None
    if not isinstance(type_, relax.TensorType) or type_.dtype is None:
        return None
    if not isinstance(type_.shape, relax.ShapeExpr):
        return None
    return TensorType(list(type_.shape.values), str(type_.dtype.dtype))


def _relax_type(type_: TensorType | TupleType) -> ir.Type:
    if isinstance(type_, TupleType):
        return relax.TupleType([_relax_type(field) for field in type_.fields])
    simplify = Analyzer().simplify  # as TVM does: equal extents are the same expressions then
    shape = [each if isinstance(each, int) else simplify(each) for each in type_.shape]
    return relax.TensorType(shape, type_.dtype)
