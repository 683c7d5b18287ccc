"""nn.batch_matmul on CPUs by oneDNN: without tuning, TVM's own schedule takes up to forty times as long.

Importing this module registers the strategy.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._register import known
from .._tvm import TVMError, address_of, shape_of
from .._types import IntExpr
from . import library
from .calls import Remembered, forget_all_of_thread, packed, remember

Key = tuple[Any, ...]  # the text of a problem, and the shapes of its operands
PACKED_FUNCTION = "topi_ext.batch_matmul.onednn"
ABOVE_TVM = 40  # the level of TVM's own bindings is up to 15
MAX_PRIMITIVES = 1024  # that a thread keeps
AT_RUN_TIME = 0  # for an extent that is not known before
ONE = [1, 1, 1]
generic: Any = importlib.import_module("tvm.relay.op.strategy.generic")
x86: Any = importlib.import_module("tvm.relay.op.strategy.x86")


class Problem(NamedTuple):
    """A product of each item of two batches, of which one may have one item for all."""

    shapes: list[list[int]]  # of the operands, as they are in memory, or AT_RUN_TIME
    transposed: list[bool]
    dtype: str
    result: str  # its type

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        (_, rows, _), (_, _, columns) = self.extents()
        return max(batch for batch, _, _ in self.shapes), rows, columns

    @property
    def is_known(self) -> bool:
        """Whether all extents are known before run time."""
        return all(extent != AT_RUN_TIME for shape in self.shapes for extent in shape)

    def extents(self) -> list[tuple[int, int, int]]:
        """The shapes of the operands as they are multiplied."""
        return [
            (batch, columns, rows) if is_transposed else (batch, rows, columns)
            for (batch, rows, columns), is_transposed in zip(self.shapes, self.transposed)
        ]


def is_capable(problem: Problem) -> bool:
    """Whether oneDNN computes the product on this processor; unknown extents make no difference."""
    if not problem.is_known:
        return is_capable(problem._replace(shapes=[ONE, ONE]))
    if library.library() is None or {problem.dtype, problem.result} - {"float32", "bfloat16"}:
        return False
    try:
        _Product(problem)
    except library.NotImplementedByOneDNN:
        return False
    return True


class _Product:
    """The primitive of a problem, and memory for its arguments."""

    def __init__(self, problem: Problem) -> None:
        operands = []
        for extents, is_transposed in zip(problem.extents(), problem.transposed):
            _, rows, columns = extents
            steps = (1, rows) if is_transposed else (columns, 1)
            operands.append(library.layout(extents, problem.dtype, (rows * columns, *steps)))
        _, rows, columns = problem.shape
        left, right = operands
        result = library.layout(problem.shape, problem.result, (rows * columns, columns, 1))
        primitive = library.matmul(left, right, None, result, library.PostOps())
        self._memories = [library.memory(layout, 0) for layout in (left, right, result)]
        indices = library.SOURCE, library.WEIGHTS, library.RESULT
        self._execution = library.Execution(primitive, dict(zip(indices, self._memories)))

    def run(self, stream: library.Handle, addresses: Sequence[int]) -> None:
        for memory, address in zip(self._memories, addresses):
            library.move(memory, address)
        self._execution.run(stream)

    def remembered(
        self, text: str, shapes: Sequence[Sequence[int]], stream: library.Handle
    ) -> Remembered | None:
        return remember(text, shapes, self._execution, stream, [*enumerate(self._memories)])


class _OfThread(threading.local):
    """The products of a thread, each made once."""

    def __init__(self) -> None:
        forget_all_of_thread()
        self.products: dict[Key, _Product] = {}
        self._remembered: dict[Key, Remembered | None] = {}
        self._stream: library.Handle | None = None

    def run(self, text: str, shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]) -> None:
        key = text, *shapes
        product = self.products.get(key)
        if product is None:
            library.check_installed("nn.batch_matmul")
            if len(self.products) >= MAX_PRIMITIVES:
                self.products.clear()
                self._remembered.clear()
            product = self.products[key] = _Product(_of_shapes(text, *shapes))
        self._stream = self._stream or library.stream()
        product.run(self._stream, addresses)
        self._remembered[key] = product.remembered(text, shapes, self._stream)


_of_thread = _OfThread()


@packed(PACKED_FUNCTION)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: tvm.nd.NDArray) -> None:
    *operands, result = map(shape_of, tensors)
    if any(0 in shape for shape in operands):  # sums of nothing
        tensors[-1].copyfrom(np.zeros(result, tensors[-1].dtype))
    else:
        _of_thread.run(text, operands, [address_of(tensor) for tensor in tensors])


def _of_shapes(text: str, left: Sequence[int], right: Sequence[int]) -> Problem:
    """The problem of matrices, or of batches of them, of such shapes."""
    problem = Problem(**json.loads(text))
    problem = problem._replace(shapes=[[*[1] * (3 - len(shape)), *shape] for shape in (left, right)])
    (batch, _, length), (batch_of_right, length_of_right, _) = problem.extents()
    if length != length_of_right or (batch != batch_of_right and 1 not in (batch, batch_of_right)):
        raise TVMError(f"{PACKED_FUNCTION}: tensors of {left} and {right} cannot be multiplied")
    return problem


def _problem(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], dtype: str) -> Problem | None:
    """The problem of an nn.batch_matmul, or None where it is not one for oneDNN."""
    shapes = [[known(extent) for extent in tensor.shape] for tensor in inputs]
    if any(0 in shape for shape in shapes) or inputs[0].dtype != inputs[1].dtype:
        return None
    transposed = [bool(attrs.transpose_a), bool(attrs.transpose_b)]
    return Problem(
        [[extent or AT_RUN_TIME for extent in shape] for shape in shapes], transposed, inputs[0].dtype, dtype
    )


def _shape(problem: Problem, inputs: Sequence[te.Tensor]) -> list[IntExpr]:
    """The shape of the result, of tensors some of whose extents may be expressions."""
    (batch, *left), (batch_of_right, *right) = (tensor.shape for tensor in inputs)
    is_one = problem.shapes[0][0] == 1
    return [
        batch_of_right if is_one else batch,
        left[1 if problem.transposed[0] else 0],
        right[0 if problem.transposed[1] else 1],
    ]


def _compute(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type) -> list[te.Tensor]:
    problem = _problem(attrs, inputs, result.dtype)
    if problem is None:
        raise ValueError("the strategy has no oneDNN for such a product")
    text = json.dumps(problem._asdict())
    product = te.extern(
        _shape(problem, inputs),
        inputs,
        lambda ins, outs: tir.call_packed(PACKED_FUNCTION, text, *ins, *outs),
        dtype=problem.result,
        name="batch_matmul",
        tag="batch_matmul_onednn",
    )
    return [product]


def _schedule(_attrs: tvm.ir.Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """What TVM fuses behind the product is computed on all cores."""
    with target:
        s = te.create_schedule([out.op for out in outs])
        te.schedule.AutoInlineInjective(s)
        for out in outs:
            if not isinstance(out.op, te.ExternOp):
                topi.x86.injective.schedule_injective_from_existing(s, out)
    return s


@generic.batch_matmul_strategy.register("cpu", override=True)
def _strategy(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type, target: tvm.target.Target
) -> registry.OpStrategy:
    """TVM's own, and oneDNN's, which is preferred where it can."""
    strategy = x86.batch_matmul_strategy_cpu(attrs, inputs, result, target)
    problem = _problem(attrs, inputs, result.dtype) if library.NAME in target.libs else None
    if problem is not None and is_capable(problem):
        strategy.add_implementation(_compute, _schedule, name="batch_matmul.onednn", plevel=ABOVE_TVM)
    return strategy
