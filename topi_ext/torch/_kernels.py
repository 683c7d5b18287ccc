"""Relay operators as plain functions of tensors, which write their results into given tensors.

An operator is compiled on its own, with the same strategy as in a graph. Its workspace is among its outputs,
so the caller provides all memory, and none is shared between streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Union

import tvm
from tvm import relay, te, tir
from tvm.relay.backend.te_compiler import get_valid_implementations

from .._types import IntExpr
from ..quiet import quiet

Signature = tuple[tuple[str, tuple[Union[int, str], ...]], ...]  # of each tensor, its type and its axes


class Kernel:
    """A compiled operator: `kernel(inputs, outputs)` runs it.

    The first `results` outputs are those of the operator, the others are workspace.
    """

    def __init__(
        self,
        build: Callable[..., relay.Expr],
        inputs: Signature,
        sizes: Sequence[str],
        target: tvm.target.Target,
    ) -> None:
        """Compile an operator for all tensors with these types and axes.

        `build(*variables, *sizes)` returns the Relay call. `inputs` has the type and the axes of each tensor:
        a number for a fixed length, a name for any length, the same wherever the name occurs. `sizes` names
        the lengths that only the result has.
        """
        names = (axis for axis in chain(*(axes for _, axes in inputs), sizes) if isinstance(axis, str))
        self._variables = {name: te.var(name) for name in names}
        self.names = tuple(self._variables)
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
            self._function = tvm.build(schedule, [*tensors, *self._outputs], target)
        self.outputs = lru_cache(maxsize=4096)(self._outputs_of)

    def __call__(self, inputs: Sequence[tvm.nd.NDArray], outputs: Sequence[tvm.nd.NDArray]) -> None:
        self._function(*inputs, *outputs)

    def _outputs_of(self, *lengths: int) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each output, for these lengths of `names`."""
        values = dict(zip(self._variables.values(), lengths))
        simplify = tvm.arith.Analyzer().simplify

        def value_of(length: IntExpr) -> int:
            return int(simplify(tir.stmt_functor.substitute(length, values)))

        return [(tuple(map(value_of, output.shape)), output.dtype) for output in self._outputs]


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
