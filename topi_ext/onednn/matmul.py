"""Products of matrices on CPUs by oneDNN: without tuning, TVM's own take up to a hundred times as long."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._tvm import TVMError, address_of, shape_of, te, tir
from .._types import IntExpr
from . import library
from .calls import Remembered, forget_all_of_thread, packed, remember

Key = tuple[Any, ...]  # the text of a problem, and the shapes of its operands
PACKED_FUNCTION = "topi_ext.matmul.onednn"
MAX_PRIMITIVES = 1024  # that a thread keeps
AT_RUN_TIME = 0  # for an extent that is not known before
ONE = [1, 1, 1]


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


def product(problem: Problem, shape: Sequence[IntExpr], inputs: Sequence[te.Tensor]) -> te.Tensor:
    """The call of oneDNN; of the shape, some extents may be expressions."""
    text = json.dumps(problem._asdict())
    return te.extern(
        shape,
        inputs,
        lambda ins, outs: tir.call_packed(PACKED_FUNCTION, text, *ins, *outs),
        dtype=problem.result,
        name="matmul",
        tag="matmul_onednn",
    )


# --- at run time


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
            library.check_installed("a product of matrices")
            if len(self.products) >= MAX_PRIMITIVES:
                self.products.clear()
                self._remembered.clear()
            product = self.products[key] = _Product(_of_shapes(text, *shapes))
        self._stream = self._stream or library.stream()
        product.run(self._stream, addresses)
        self._remembered[key] = product.remembered(text, shapes, self._stream)


_of_thread = _OfThread()


@packed(PACKED_FUNCTION)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: Any) -> None:
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
