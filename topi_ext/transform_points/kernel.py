"""Of which sample a point is, and where it goes, emitted alike for every target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from .._floats import Locals
from .._register import known
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir
from .._types import IntExpr


def rows_of(points: te.Tensor) -> IntExpr:
    """How many points there are."""
    return reduce(mul, (_extent(length) for length in points.shape[:-1]))


def emit_point(
    ib: IRBuilder, local: Locals, inputs: Sequence[tir.Buffer], output: tir.Buffer, number: tir.PrimExpr
) -> None:
    """Transform one point. `inputs`: points, matrix, and offsets if points are ragged."""
    points, matrix, *offsets = inputs
    at: tuple[tir.PrimExpr, ...] = (number,)
    of_sample: tuple[tir.PrimExpr, ...] = ()
    if len(points.shape) == 3:
        length = _extent(points.shape[1])
        at = (tir.truncdiv(number, length), tir.truncmod(number, length))
    if offsets:
        of_sample = (_sample_of(ib, local, ib.buffer_ptr(*offsets), number, _extent(matrix.shape[0])),)
    elif len(matrix.shape) == 3:
        of_sample = at[:1]
    points, matrix, out = map(ib.buffer_ptr, (points, matrix, output))
    axes = range(int(output.shape[-1]))
    point = [local("point", points[(*at, axis)].astype("float64")) for axis in axes]
    for row in axes:
        products = (matrix[(*of_sample, row, axis)].astype("float64") * point[axis] for axis in axes)
        moved = sum(products, tir.const(0.0, "float64")) + matrix[(*of_sample, row, len(axes))].astype(
            "float64"
        )
        out[(*at, row)] = moved.astype(output.dtype)


def _sample_of(
    ib: IRBuilder, local: Locals, offsets: BufferVar, number: tir.PrimExpr, samples: IntExpr
) -> tir.PrimExpr:
    """The last sample that begins at the point or before it, by bisection; of any offsets there is one."""
    low, high = local.variable("low", tir.const(0)), local.variable("high", tir.const(1) * samples - 1)
    with ib.while_loop(low[0] < high[0]):
        middle = local("middle", (low[0] + high[0] + 1) >> 1)
        begin = offsets[middle]
        with ib.if_scope(begin <= number.astype(dtype_of(begin))):
            low[0] = middle
        with ib.else_scope():
            high[0] = middle - 1
    return low[0]


def _extent(length: tir.PrimExpr) -> IntExpr:
    """An int where it is known."""
    return known(length) if known(length) is not None else length.astype("int32")
