"""Reductions of rows on CPUs, by way of one for each lane of a vector.

LLVM makes no vectors of sums of floats, whose order it keeps, nor of a search, nor of comparisons that start
from minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tir, topi

from ._register import known
from ._strategy import generic
from ._target import is_for_llvm

LANES, FEW = 16, 4  # of a vector, and of those that take what it leaves over
IN_LANES, IN_FEW = "in_lanes", "in_few_lanes"


def has_lanes(data: te.Tensor, axes: Sequence[int]) -> bool:
    """Whether it is a CPU that reduces rows, the last `axes`, of which a vector is read as one."""
    if not is_for_llvm() or not axes or list(axes) != [*range(axes[0], len(data.shape))]:
        return False
    if data.dtype == "bfloat16":  # TVM has no code to cast vectors of it
        return False
    lengths = [known(data.shape[axis]) or 0 for axis in axes]
    is_even = len(axes) == 1 or lengths[-1] % LANES == 0  # no vector has parts of two rows of an image
    return math.prod(lengths) >= LANES and (is_even or _is_in_a_row(data, lengths))


def _is_in_a_row(data: te.Tensor, lengths: list[int]) -> bool:
    """Whether several axes are one in memory, also in that which `data` is computed of, element by element.

    A number for each column of an image is not.
    """
    mine = ([1] * len(lengths) + [known(extent) or 0 for extent in data.shape])[-len(lengths) :]
    if mine != lengths and math.prod(mine) != 1:
        return False
    return isinstance(data.op, te.PlaceholderOp) or (
        topi.tag.is_broadcast(data.op.tag)
        and all(_is_in_a_row(each, lengths) for each in data.op.input_tensors)
    )


def in_lanes(
    data: te.Tensor,
    axes: Sequence[int],
    reduce: Any,
    part_of: Callable,
    result: Callable,
    shape: list[Any],
    takes_twice: bool = False,
) -> te.Tensor:
    """`result` of a reduction of rows, the last `axes`, or of the first of several that are made together.

    `reduce` is made by `te.comm_reducer`, of what `part_of` gives for an element's number and the element.
    If it `takes_twice`, an element counts no more than once, and the last vector has some of that before it.
    """
    kept = data.shape[: axes[0]]
    lengths = [int(data.shape[axis]) for axis in axes]
    vectors, left = divmod(math.prod(lengths), LANES)
    is_last_moved = takes_twice and left > 0
    if is_last_moved:
        vectors, left = vectors + 1, 0
    few, rest = divmod(left, FEW)
    tag = topi.tag.COMM_REDUCE_IDX

    def reduced(shape: list[Any], count: int, read: Callable, name: str) -> Any:
        along = te.reduce_axis((0, count), "along")
        parts = te.compute(shape, lambda *at: reduce(read(at, along.var), axis=[along]), name=name, tag=tag)
        return parts if isinstance(parts, te.Tensor) else [*parts]

    def of_parts(parts: Any, at: Any) -> Any:
        return parts(*at) if isinstance(parts, te.Tensor) else [part(*at) for part in parts]

    def element(at: Any, number: tir.PrimExpr) -> Any:
        indices, before = [], number
        for length in reversed(lengths[1:]):
            indices.append(tir.floormod(before, length))
            before = tir.floordiv(before, length)
        return part_of(number, data(*at[: len(kept)], before, *reversed(indices)))

    def of_data(at: Any, along: tir.Var) -> Any:
        first = along * LANES
        return element(at, (te.min(first, math.prod(lengths) - LANES) if is_last_moved else first) + at[-1])

    def of_lanes(at: Any, along: tir.Var) -> Any:
        parts = of_parts(all_lanes, (*at[:-1], along * FEW + at[-1]))
        behind = along * FEW + at[-1] + (vectors - 1) * LANES
        return tir.if_then_else(along < LANES // FEW, parts, element(at, behind)) if few else parts

    def of_few(at: Any, along: tir.Var) -> Any:
        parts = of_parts(few_lanes, (*at[: len(kept)], along))
        behind = along + (vectors * LANES + few * FEW - FEW)
        return tir.if_then_else(along < FEW, parts, element(at, behind)) if rest else parts

    all_lanes = reduced([*kept, LANES], vectors, of_data, IN_LANES)
    few_lanes = reduced([*kept, FEW], LANES // FEW + few, of_lanes, IN_FEW)
    whole = reduced(shape, FEW + rest, of_few, f"{data.op.name}_red_temp")
    first = whole if isinstance(whole, te.Tensor) else whole[0]
    return te.compute(shape, lambda *at: result(first(*at)), f"{data.op.name}_red", tag)


def schedule(attrs: Any, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """TVM's own, but for what is reduced in lanes."""
    (out,) = outs
    whole = _reader_of_lanes(out.op)
    if whole is None:
        return generic.schedule_reduce(attrs, outs, target)
    in_few = next(tensor.op for tensor in whole.input_tensors if tensor.op.name == IN_FEW)
    in_lanes = next(tensor.op for tensor in in_few.input_tensors if tensor.op.name == IN_LANES)
    s = te.create_schedule([out.op])
    te.schedule.AutoInlineInjective(s)
    row = s[out].fuse(*out.op.axis)
    s[out].parallel(row)
    for operation in (whole, in_few, in_lanes):
        s[operation].compute_at(s[out], row)
    for operation in (in_few, in_lanes):
        *_, lane = operation.axis
        s[operation].reorder(*operation.reduce_axis, lane)
        s[operation].vectorize(lane)
    for operation in (whole, in_few):
        s[operation].unroll(*operation.reduce_axis)
    return s


def _reader_of_lanes(operation: te.Operation) -> te.Operation | None:
    """Of an operation and those that it is computed of, what reduces the few lanes to one."""
    before = [tensor.op for tensor in operation.input_tensors]
    if any(each.name == IN_FEW for each in before):
        return operation
    return next(filter(None, map(_reader_of_lanes, before)), None)
