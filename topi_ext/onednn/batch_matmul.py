"""nn.batch_matmul on CPUs by oneDNN: without tuning, TVM's own schedule takes up to forty times as long.

Importing this module registers the strategy.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._register import known
from .._tvm import address_of, length_of
from . import library
from .calls import Remembered, forget_all_of_thread, packed, remember

PACKED_FUNCTION = "topi_ext.batch_matmul.onednn"
ABOVE_TVM = 40  # the level of TVM's own bindings is up to 15
MAX_PRIMITIVES = 1024  # that a thread keeps
generic: Any = importlib.import_module("tvm.relay.op.strategy.generic")
x86: Any = importlib.import_module("tvm.relay.op.strategy.x86")


class Problem(NamedTuple):
    """A product of each item of two batches, of which one may have one item for all."""

    shapes: list[list[int]]  # of the operands, as they are in memory
    transposed: list[bool]
    dtype: str
    result: str  # its type

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        (_, rows, _), (_, _, columns) = self.extents()
        return max(batch for batch, _, _ in self.shapes), rows, columns

    def extents(self) -> list[tuple[int, int, int]]:
        """The shapes of the operands as they are multiplied."""
        return [
            (batch, columns, rows) if is_transposed else (batch, rows, columns)
            for (batch, rows, columns), is_transposed in zip(self.shapes, self.transposed)
        ]


def is_capable(problem: Problem) -> bool:
    """Whether oneDNN computes the product on this processor."""
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

    def remembered(self, text: str, length: int, stream: library.Handle) -> Remembered | None:
        return remember(text, length, self._execution, stream, [*enumerate(self._memories)])


class _OfThread(threading.local):
    """The products of a thread, each made once."""

    def __init__(self) -> None:
        forget_all_of_thread()
        self.products: dict[str, _Product] = {}
        self._remembered: dict[str, Remembered | None] = {}
        self._stream: library.Handle | None = None

    def run(self, text: str, length: int, addresses: Sequence[int]) -> None:
        product = self.products.get(text)
        if product is None:
            library.check_installed("nn.batch_matmul")
            if len(self.products) >= MAX_PRIMITIVES:
                self.products.clear()
                self._remembered.clear()
            product = self.products[text] = _Product(Problem(**json.loads(text)))
        self._stream = self._stream or library.stream()
        product.run(self._stream, addresses)
        self._remembered[text] = product.remembered(text, length, self._stream)


_of_thread = _OfThread()


@packed(PACKED_FUNCTION)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: tvm.nd.NDArray) -> None:
    _of_thread.run(text, length_of(tensors[0]), [address_of(tensor) for tensor in tensors])


def _problem(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], dtype: str) -> Problem | None:
    """The problem of an nn.batch_matmul, or None where it is not one for oneDNN."""
    shapes = [[known(extent) for extent in tensor.shape] for tensor in inputs]
    if not all(extent for shape in shapes for extent in shape) or inputs[0].dtype != inputs[1].dtype:
        return None
    transposed = [bool(attrs.transpose_a), bool(attrs.transpose_b)]
    return Problem(
        [[extent or 0 for extent in shape] for shape in shapes], transposed, inputs[0].dtype, dtype
    )


def _compute(attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], result: relay.Type) -> list[te.Tensor]:
    problem = _problem(attrs, inputs, result.dtype)
    if problem is None:
        raise ValueError("the strategy has no oneDNN for such a product")
    text = json.dumps(problem._asdict())
    product = te.extern(
        problem.shape,
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
