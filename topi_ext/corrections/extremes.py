"""Maxima and minima of rows without finite numbers, and of rows with NaN.

TVM's reductions start from the most extreme finite number, at index -1: for a row of minus infinities, as
attention masks make it, the maximum is -3.4e38, and argmax gives -1. Whether they find a NaN depends on where
it is. Importing this module makes them those of `_extremes`.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import te, tir, topi

from .._extremes import Keys, number_of, plan
from .._lanes import has_lanes, in_lanes, schedule
from .._strategy import Compute, compute_by, stock_compute


def _extreme(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = axes_of(attrs, len(data.shape))
    keys = Keys(name, data.dtype)
    if keys.are_values or not axes:
        return list(stock(attrs, inputs, type_))
    reduce = keys.reducer()
    shape, element, reduced = plan(data, axes, bool(attrs.keepdims))
    if has_lanes(data, axes):
        return [in_lanes(data, axes, reduce, lambda _, value: keys.of(value), keys.value, shape)]
    result = te.compute(
        shape,
        lambda *place: reduce(keys.of(element(place)), axis=reduced),
        name=f"{data.op.name}_red",
        tag=topi.tag.COMM_REDUCE,
    )
    return [te.compute(shape, lambda *place: keys.value(result(*place)), "extreme", topi.tag.ELEMWISE)]


def _place(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = axes_of(attrs, len(data.shape))
    if data.dtype == "bool" or not axes:
        return list(stock(attrs, inputs, type_))
    keys = Keys(name[len("arg") :], data.dtype)
    reduce = keys.reducer_of_places(bool(attrs.select_last_index))
    shape, element, reduced = plan(data, axes, bool(attrs.keepdims))
    if has_lanes(data, axes):

        def part_of(place: tir.PrimExpr, value: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            return place.astype(type_.dtype), keys.of(value)

        return [in_lanes(data, axes, reduce, part_of, lambda place: place, shape, takes_twice=True)]
    number = number_of(reduced, type_.dtype)
    places, _ = te.compute(
        shape,
        lambda *place: reduce((number, keys.of(element(place))), axis=reduced),
        name=f"{data.op.name}_red_temp",
        tag=topi.tag.COMM_REDUCE_IDX,
    )
    return [te.compute(shape, lambda *place: places(*place), f"{data.op.name}_red", topi.tag.COMM_REDUCE_IDX)]


def axes_of(attrs: Any, rank: int) -> list[int]:
    """The axes that are reduced, in order; none where TVM reduces nothing."""
    given = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    chosen = set(given) if len(given) or attrs.exclude else set(range(rank))
    return [axis for axis in range(rank) if (axis in chosen) != bool(attrs.exclude)]


for _name in ("max", "min"):
    compute_by(_name, functools.partial(_extreme, _name, stock_compute(_name)), schedule)
for _name in ("argmax", "argmin"):
    compute_by(_name, functools.partial(_place, _name, stock_compute(_name)), schedule)
