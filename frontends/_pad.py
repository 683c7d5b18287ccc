"""Padding by widths that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_passes.analysis.shape_values import values_of
from tvm_passes.engine.expressions import type_of

from tvm import relay

from ._fold import keep_known
from ._types import sizes


def pad_late(data: relay.Expr, pads: relay.Expr, rank: int, value: relay.Expr, mode: str) -> relay.Expr:
    """Pad by `pads`, an int64 of shape (2, rank): before each axis, and behind; a negative one cuts off."""
    after = _sizes_after(data, pads)
    zero = relay.const(0, "int64")
    cut = relay.maximum(zero - pads, zero)
    first, last = (relay.take(cut, relay.const(side), 0) for side in (0, 1))
    end = relay.shape_of(data, "int64") - last
    data = relay.strided_slice(data, first, end, relay.const(np.ones(rank, "int64")))
    if mode == "wrap":
        for axis in range(rank):
            before, behind = (relay.take(pads, relay.const(side * rank + axis)) for side in (0, 1))
            data = pad_from_inside(data, relay.maximum(before, zero), relay.maximum(behind, zero), axis, mode)
    else:
        data = relay.nn.pad(data, relay.transpose(relay.maximum(pads, zero)), value, mode)
    return keep_known(data, after)


def _sizes_after(data: relay.Expr, pads: relay.Expr) -> list[int | None]:
    """What is known of the sizes: who pads rows and columns at run time leaves the channels as they are."""
    known = values_of(pads, {})
    if known is None:
        return []
    columns = [[size, *widths] for size, widths in zip(sizes(type_of(data)), known.T.tolist())]
    return [sum(column) if all(isinstance(each, int) for each in column) else None for column in columns]


def pad_from_inside(
    data: relay.Expr, before: relay.Expr, behind: relay.Expr, axis: int, mode: str
) -> relay.Expr:
    """Pad one axis, of any length, by its own elements: mirrored ("reflect") or from the other end ("wrap").

    An axis that is shorter than the padding is gone through again and again.
    """
    zero, one, two = (relay.const(number, "int64") for number in (0, 1, 2))
    size = relay.take(relay.shape_of(data, "int64"), relay.const(axis))
    places = relay.arange(zero - before, size + behind, one, "int64")
    if mode == "wrap":
        return relay.take(data, relay.floor_mod(places, size), axis)
    there_and_back = relay.maximum(two * (size - one), one)
    places = relay.floor_mod(places, there_and_back)
    return relay.take(data, relay.minimum(places, there_and_back - places), axis)


def pad_same(
    stock: Callable[..., relay.Expr],
    data: relay.Expr,
    strides: Sequence[int],
    kernel_shape: Sequence[int],
    dilations: Sequence[int] = (1, 1),
    *args: Any,
    mode: str = "SAME_UPPER",
    pad_value: float = 0.0,
    **options: Any,
) -> relay.Expr:
    """Pad for as many windows as strides; `stock` does so for any size, but forgets those of other axes."""
    shape = sizes(type_of(data))
    reach = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(kernel_shape, dilations)]
    widths = [same_widths(*each, mode) for each in zip(shape[2:], reach, strides)]
    if None in widths or args or options:
        padded = stock(
            data, strides, kernel_shape, dilations, *args, mode=mode, pad_value=pad_value, **options
        )
        after = [size and width and size + sum(width) for size, width in zip(shape[2:], widths)]
        return keep_known(padded, [*shape[:2], *after])
    return relay.nn.pad(data, [(0, 0), (0, 0), *widths], pad_value) if np.any(np.array(widths)) else data


def same_widths(size: int | None, reach: int, stride: int, mode: str) -> tuple[int, int] | None:
    """How much to pad in front and behind, for as many windows as strides, the last of which may be cut.

    None if the size decides that, and is not known.
    """
    if size is None and stride > 1:
        return None
    total = max((-(-(size or 1) // stride) - 1) * stride + reach - (size or 1), 0)
    less, more = total // 2, total - total // 2
    return (less, more) if mode == "SAME_UPPER" else (more, less)
