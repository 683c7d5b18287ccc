"""Relay operators as plain functions of addresses, which write their results where they are told.

An operator is compiled on its own, with the same strategy as in a graph. Its workspace is among its outputs,
so the caller provides all memory, and none is shared between streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import Array, addressof, byref, c_int, c_uint64, sizeof
from itertools import chain
from typing import Any, Union

import tvm
from tvm import relay, te, tir
from tvm._ffi.base import _LIB, check_call
from tvm._ffi.runtime_ctypes import ArgTypeCode, DataType, TVMArray, tvm_shape_index_t
from tvm.relay.backend.te_compiler import get_valid_implementations

from .._types import IntExpr
from ..quiet import quiet

ALIGNMENT = 64  # in bytes, that TVM requires of the address of a tensor
WORDS = sizeof(TVMArray) // sizeof(
    c_uint64
)  # of the struct that describes a tensor; the first is its address

Signature = tuple[tuple[str, tuple[Union[int, str], ...]], ...]  # of each tensor, its type and its axes
Types = Sequence[tuple[Sequence[int], str]]  # of each tensor, its shape and its type


class Kernel:
    """An operator for all tensors of some types and axes; `function` runs it once it is compiled.

    It takes the inputs, then the outputs: the first `results` are the operator's own, the others workspace.
    """

    def __init__(
        self,
        build: Callable[..., relay.Expr],
        inputs: Signature,
        sizes: Sequence[str],
        target: tvm.target.Target,
    ) -> None:
        """Find the types of its outputs.

        `build(*variables, *sizes)` returns the Relay call. `inputs` has the type and the axes of each tensor:
        a number for a fixed length, a name for any length, the same wherever the name occurs. `sizes` names
        the lengths that only the result has.
        """
        names = (axis for axis in chain(*(axes for _, axes in inputs), sizes) if isinstance(axis, str))
        self._variables = {name: te.var(name) for name in names}
        shapes = [
            [self._variables[axis] if isinstance(axis, str) else axis for axis in axes] for _, axes in inputs
        ]
        types = [
            relay.TensorType([relay.Any() if isinstance(axis, str) else axis for axis in axes], dtype)
            for dtype, axes in inputs
        ]
        arguments = [relay.Var(f"x{number}", type_) for number, type_ in enumerate(types)]
        call = build(*arguments, *(self._variables[name] for name in sizes))
        tensors = [
            te.placeholder(shape, dtype, argument.name_hint)
            for shape, (dtype, _), argument in zip(shapes, inputs, arguments)
        ]
        with quiet(), target:
            outputs, schedule = _lower(call, dict(zip(arguments, tensors)), target)
        own = {(output.op, output.value_index) for output in outputs}
        workspace = [
            op.output(index)
            for op in dict.fromkeys(output.op for output in outputs)
            for index in range(op.num_outputs)
            if (op, index) not in own
        ]
        self.results = len(outputs)
        self._outputs = [*outputs, *workspace]
        self._to_compile = schedule, [*tensors, *self._outputs], target
        self._module: tvm.runtime.Module | None = None

    @property
    def is_compiled(self) -> bool:
        return self._module is not None

    def compile(self) -> None:
        """Compile it, unless it is compiled."""
        if self._module is None:
            schedule, arguments, target = self._to_compile
            with quiet(), target:
                self._module = tvm.build(schedule, arguments, target)

    @property
    def function(self) -> tvm.runtime.PackedFunc:
        assert self._module is not None, "it is yet to be compiled"
        return self._module.entry_func

    def types(self, lengths: Mapping[str, int]) -> Types:
        """Shape and type of each output, for these lengths of the axes by their names."""
        values = {variable: lengths[name] for name, variable in self._variables.items()}

        def value_of(length: IntExpr) -> int:
            if isinstance(length, tir.Var):
                return values[length]  # as it is: it may be a symbol of torch
            if isinstance(length, (int, tir.IntImm)):
                return int(length)
            numbers = {variable: int(value) for variable, value in values.items()}
            return int(tvm.arith.Analyzer().simplify(tir.stmt_functor.substitute(length, numbers)))

        return [(tuple(map(value_of, output.shape)), output.dtype) for output in self._outputs]


class Arguments:
    """What a compiled function takes: C structs for all tensors, of which only the addresses change.

    A call takes structs that no other thread is using, and makes more if there are none.
    """

    def __init__(self, function: tvm.runtime.PackedFunc, types: Types, device: tvm.runtime.Device) -> None:
        self._function, self._types, self._device = function, types, device
        self._unused: list[tuple[Array[c_uint64], tuple[Any, ...]]] = []

    def call(self, addresses: Sequence[int]) -> None:
        """Call the function on tensors at these addresses."""
        try:
            words, arguments = self._unused.pop()
        except IndexError:
            words, arguments = self._new()
        place = 0
        for address in addresses:
            words[place] = address
            place += WORDS
        check_call(_LIB.TVMFuncCall(*arguments))  # other threads run meanwhile
        self._unused.append((words, arguments))

    def _new(self) -> tuple[Array[c_uint64], tuple[Any, ...]]:
        """The structs as words, and the arguments of `TVMFuncCall`, which refer to them."""
        count = len(self._types)
        tensors = (TVMArray * count)()
        for tensor, (shape, dtype) in zip(tensors, self._types):
            tensor.device, tensor.dtype, tensor.ndim = self._device, DataType(dtype), len(shape)
            tensor.shape = (tvm_shape_index_t * len(shape))(*shape)
        words = (c_uint64 * (count * WORDS)).from_buffer(tensors)
        values = (c_uint64 * count)(*(addressof(tensor) for tensor in tensors))
        codes = (c_int * count)(*[ArgTypeCode.DLTENSOR_HANDLE] * count)
        result = byref(c_uint64()), byref(c_int())
        return words, (self._function.handle, values, codes, c_int(count), *result)


def _lower(
    call: relay.Call, tensors: dict[relay.Var, te.Tensor], target: tvm.target.Target
) -> tuple[list[te.Tensor], te.Schedule]:
    """The outputs of an operator, and their schedule."""
    type_ = relay.transform.InferTypeLocal(relay.Function(list(tensors), call)).ret_type
    inputs = [  # a constant stands for a missing optional argument, which no kernel reads
        tensors[field] if field in tensors else te.placeholder(field.data.shape, field.data.dtype)
        for argument in call.args
        for field in (argument.fields if isinstance(argument, relay.Tuple) else [argument])
    ]
    implementation, *_ = get_valid_implementations(call.op, call.attrs, inputs, type_, target)
    outputs = list(implementation.compute(call.attrs, inputs, type_))
    return outputs, implementation.schedule(call.attrs, outputs, target)
