"""Maxima and minima of rows without finite numbers, and of rows with NaN.

TVM's reductions start from the most extreme finite number, at index -1: for a row of minus infinities, as
attention masks make it, the maximum is -3.4e38, and argmax gives -1. Whether they find a NaN depends on where
it is. Importing this module makes them start from the infinities, at an index that any element replaces, and
makes NaN the extreme of its row, as for NumPy and torch, at the index of the first. Floats are compared as
integers of the same order, since LLVM is told that there is no NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tvm
from tvm import te, tir, topi

from .._floats import MAGNITUDE, bits, bits_of
from .._register import known
from .._strategy import Compute, compute_by, generic, stock_compute
from ..sort.order import from_ordered_bits, ordered_bits

BY_KEYS = ("float16", "bfloat16", "float32")
WITH_INFINITIES = (*BY_KEYS, "float64")
LANES, FEW = 16, 4  # of a vector, and what is left of it before the last are compared one by one
IN_LANES, IN_FEW = "in_lanes", "in_few_lanes"
SIGN = tir.const(-(1 << 31), "int32")
INFINITE = {"max": -math.inf, "min": math.inf}


def _extreme(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = _axes(attrs, len(data.shape))
    if data.dtype not in WITH_INFINITIES or not axes:
        return list(stock(attrs, inputs, type_))
    keys = _Keys(name, data.dtype)
    more = {"max": tir.Max, "min": tir.Min}[keys.kind]
    reduce = te.comm_reducer(lambda x, y: more(x, y), lambda _: keys.least, name=name)
    shape, element, reduced = _plan(data, axes, bool(attrs.keepdims))
    if _has_lanes(data, axes):
        return [_in_lanes(data, reduce, lambda _, value: keys.of(value), keys.value, shape)]
    result = te.compute(
        shape,
        lambda *place: reduce(keys.of(element(place)), axis=reduced),
        name=f"{data.op.name}_red",
        tag=topi.tag.COMM_REDUCE,
    )
    if keys.are_values:
        return [result]
    return [te.compute(shape, lambda *place: keys.value(result(*place)), "extreme", topi.tag.ELEMWISE)]


def _place(name: str, stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (data,) = inputs
    axes = _axes(attrs, len(data.shape))
    if data.dtype == "bool" or not axes:
        return list(stock(attrs, inputs, type_))
    is_last = bool(attrs.select_last_index)
    keys = _Keys(name[len("arg") :], data.dtype)

    def better(one: Any, other: Any) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        (place, value), (other_place, other_value) = one, other
        is_more = value > other_value if keys.kind == "max" else value < other_value
        is_sooner = place > other_place if is_last else place < other_place
        mine = tir.any(is_more, tir.all(value.equal(other_value), is_sooner))
        return tir.Select(mine, place, other_place), tir.Select(mine, value, other_value)

    def none(of_place: str, _: str) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        never = -1 if is_last else int(tvm.tir.max_value(of_place).value)
        return tir.const(never, of_place), keys.least

    reduce = te.comm_reducer(better, none, name=name)
    shape, element, reduced = _plan(data, axes, bool(attrs.keepdims))
    if _has_lanes(data, axes):

        def part_of(place: tir.PrimExpr, value: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
            return place.astype(type_.dtype), keys.of(value)

        return [_in_lanes(data, reduce, part_of, lambda place: place, shape)]
    number = functools.reduce(
        lambda flat, axis: flat * axis.dom.extent + axis.var, reduced[1:], reduced[0].var
    ).astype(type_.dtype)
    places, _ = te.compute(
        shape,
        lambda *place: reduce((number, keys.of(element(place))), axis=reduced),
        name=f"{data.op.name}_red_temp",
        tag=topi.tag.COMM_REDUCE_IDX,
    )
    return [te.compute(shape, lambda *place: places(*place), f"{data.op.name}_red", topi.tag.COMM_REDUCE_IDX)]


def _has_lanes(data: te.Tensor, axes: list[int]) -> bool:
    """Whether it is a CPU that reduces rows which a vector divides."""
    target, length = tvm.target.Target.current(), known(data.shape[-1])
    if target is None or target.kind.name != "llvm" or not length:
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


class _Keys:
    """What elements are compared as: themselves, or the greatest integers for the extremes of floats."""

    def __init__(self, kind: str, dtype: str) -> None:
        self._dtype, self._is_min = dtype, kind == "min"
        self.are_values = dtype not in BY_KEYS
        self.kind = kind if self.are_values else "max"

    @property
    def least(self) -> tir.PrimExpr:
        """The key from which a reduction starts."""
        if not self.are_values:
            return tir.const(int(np.int32(bits_of(-math.inf)) ^ MAGNITUDE), "int32")
        if self._dtype in WITH_INFINITIES:
            return tir.const(INFINITE[self.kind], self._dtype)
        limit = tvm.tir.min_value if self.kind == "max" else tvm.tir.max_value
        return limit(self._dtype)

    def of(self, value: tir.PrimExpr) -> tir.PrimExpr:
        return value if self.are_values else ordered_bits(self._turned(value.astype("float32")))

    def value(self, key: tir.PrimExpr) -> tir.PrimExpr:
        return key if self.are_values else self._turned(from_ordered_bits(key)).astype(self._dtype)

    def _turned(self, value: tir.PrimExpr) -> tir.PrimExpr:
        """With the other sign where the least is wanted."""
        return tir.reinterpret("float32", bits(value) ^ SIGN) if self._is_min else value


def _axes(attrs: Any, rank: int) -> list[int]:
    """The axes that are reduced, in order; none where TVM reduces nothing."""
    given = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    chosen = set(given) if len(given) or attrs.exclude else set(range(rank))
    return [axis for axis in range(rank) if (axis in chosen) != bool(attrs.exclude)]


def _plan(
    data: te.Tensor, axes: list[int], keepdims: bool
) -> tuple[list[Any], Callable[[Any], tir.PrimExpr], list[tir.IterVar]]:
    """The shape of the result, the elements that each of its elements reduces, and their axes."""
    reduced = [te.reduce_axis((0, data.shape[axis]), f"k{axis}") for axis in axes]

    def element(place: tuple[tir.Var, ...]) -> tir.PrimExpr:
        along, kept = iter(reduced), _kept(place, axes) if keepdims else iter(place)
        return data(*(next(along).var if axis in axes else next(kept) for axis in range(len(data.shape))))

    sizes = list(data.shape)
    shape = [1 if axis in axes else size for axis, size in enumerate(sizes) if keepdims or axis not in axes]
    return shape, element, reduced


def _kept(place: tuple[tir.Var, ...], axes: list[int]) -> Iterator[tir.Var]:
    return (at for axis, at in enumerate(place) if axis not in axes)


for _name in ("max", "min"):
    compute_by(_name, functools.partial(_extreme, _name, stock_compute(_name)), _schedule)
for _name in ("argmax", "argmin"):
    compute_by(_name, functools.partial(_place, _name, stock_compute(_name)), _schedule)
