"""Maxima and minima of rows without finite numbers, and of rows with NaN.

TVM's reductions start from the most extreme finite number, at index -1: for a row of minus infinities, as
attention masks make it, the maximum is -3.4e38, and argmax gives -1. Whether they find a NaN depends on where
it is. Importing this module makes them those of `_extremes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tir, topi

from .._extremes import Keys, number_of, plan
from .._register import known
from .._strategy import Compute, compute_by, generic, stock_compute
from .._target import is_for_llvm

LANES, FEW = 16, 4  # of a vector, and what is left of it before the last are compared one by one
IN_LANES, IN_FEW = "in_lanes", "in_few_lanes"


def _extreme(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = _axes(attrs, len(data.shape))
    keys = Keys(name, data.dtype)
    if keys.are_values or not axes:
        return list(stock(attrs, inputs, type_))
    reduce = keys.reducer()
    shape, element, reduced = plan(data, axes, bool(attrs.keepdims))
    if _has_lanes(data, axes):
        return [_in_lanes(data, reduce, lambda _, value: keys.of(value), keys.value, shape)]
    result = te.compute(
        shape,
        lambda *place: reduce(keys.of(element(place)), axis=reduced),
        name=f"{data.op.name}_red",
        tag=topi.tag.COMM_REDUCE,
    )
    return [te.compute(shape, lambda *place: keys.value(result(*place)), "extreme", topi.tag.ELEMWISE)]


def _place(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = _axes(attrs, len(data.shape))
    if data.dtype == "bool" or not axes:
        return list(stock(attrs, inputs, type_))
    keys = Keys(name[len("arg") :], data.dtype)
    reduce = keys.reducer_of_places(bool(attrs.select_last_index))
    shape, element, reduced = plan(data, axes, bool(attrs.keepdims))
    if _has_lanes(data, axes):

        def part_of(place: tir.PrimExpr, value: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            return place.astype(type_.dtype), keys.of(value)

        return [_in_lanes(data, reduce, part_of, lambda place: place, shape)]
    number = number_of(reduced, type_.dtype)
    places, _ = te.compute(
        shape,
        lambda *place: reduce((number, keys.of(element(place))), axis=reduced),
        name=f"{data.op.name}_red_temp",
        tag=topi.tag.COMM_REDUCE_IDX,
    )
    return [te.compute(shape, lambda *place: places(*place), f"{data.op.name}_red", topi.tag.COMM_REDUCE_IDX)]


def _has_lanes(data: te.Tensor, axes: list[int]) -> bool:
    """Whether it is a CPU that reduces rows which a vector divides."""
    length = known(data.shape[-1])
    if not is_for_llvm() or not length:
        return False
    if data.dtype == "bfloat16":  # TVM has no code to cast vectors of it
        return False
    return axes == [len(data.shape) - 1] and length % LANES == 0


def _in_lanes(
    data: te.Tensor, reduce: Any, part_of: Callable, result: Callable, shape: list[Any]
) -> te.Tensor:
    """A reduction of rows, or the first of several, by way of one for each lane of a vector.

    LLVM makes no vectors of a search, nor of comparisons that start from minus infinity.
    """
    *kept, length = data.shape
    tag = topi.tag.COMM_REDUCE_IDX

    def reduced(shape: list[Any], count: Any, read: Callable, name: str) -> Any:
        along = te.reduce_axis((0, count), "along")
        parts = te.compute(shape, lambda *at: reduce(read(at, along.var), axis=[along]), name=name, tag=tag)
        return parts if isinstance(parts, te.Tensor) else [*parts]

    def of_parts(parts: Any, at: Any) -> Any:
        return parts(*at) if isinstance(parts, te.Tensor) else [part(*at) for part in parts]

    def of_data(at: Any, along: tir.Var) -> Any:
        place = along * LANES + at[-1]
        return part_of(place, data(*at[:-1], place))

    def of_lanes(at: Any, along: tir.Var) -> Any:
        return of_parts(in_lanes, (*at[:-1], along * FEW + at[-1]))

    def of_few(at: Any, along: tir.Var) -> Any:
        return of_parts(in_few, (*at[: len(kept)], along))

    in_lanes = reduced([*kept, LANES], length // LANES, of_data, IN_LANES)
    in_few = reduced([*kept, FEW], LANES // FEW, of_lanes, IN_FEW)
    whole = reduced(shape, FEW, of_few, f"{data.op.name}_red_temp")
    first = whole if isinstance(whole, te.Tensor) else whole[0]
    return te.compute(shape, lambda *at: result(first(*at)), f"{data.op.name}_red", tag)


def _schedule(attrs: Any, outs: list[te.Tensor], target: tvm.target.Target) -> te.Schedule:
    """TVM's own, but for what is reduced in lanes."""
    (out,) = outs
    last = out.op.input_tensors[0].op
    in_few = next((tensor.op for tensor in last.input_tensors if tensor.op.name == IN_FEW), None)
    if in_few is None:
        return generic.schedule_reduce(attrs, outs, target)
    in_lanes = in_few.input_tensors[0].op
    s = te.create_schedule([out.op])
    te.schedule.AutoInlineInjective(s)
    row = s[out].fuse(*out.op.axis)
    s[out].parallel(row)
    for operation in (last, in_few, in_lanes):
        s[operation].compute_at(s[out], row)
    for operation in (in_few, in_lanes):
        *_, lane = operation.axis
        s[operation].reorder(*operation.reduce_axis, lane)
        s[operation].vectorize(lane)
    return s


def _axes(attrs: Any, rank: int) -> list[int]:
    """The axes that are reduced, in order; none where TVM reduces nothing."""
    given = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    chosen = set(given) if len(given) or attrs.exclude else set(range(rank))
    return [axis for axis in range(rank) if (axis in chosen) != bool(attrs.exclude)]


for _name in ("max", "min"):
    compute_by(_name, functools.partial(_extreme, _name, stock_compute(_name)), _schedule)
for _name in ("argmax", "argmin"):
    compute_by(_name, functools.partial(_place, _name, stock_compute(_name)), _schedule)
