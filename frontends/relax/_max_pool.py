"""Maxima of windows, and where they are, for which Relax has no operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tvm import relax

from ._onnx.node import constant, shape_of

op = relax.op


def places_of_windows(
    count: int, size: int, *, kernel: int, stride: int, front: int, dilation: int
) -> np.ndarray:
    """Along an axis, the elements of each window, (windows, kernel), without those in the padding.

    The first that is inside stands for them: it is the maximum if it is equal to it, however often it comes.
    """
    at = np.arange(count)[:, None] * stride - front + np.arange(kernel) * dilation
    is_inside = (at >= 0) & (at < size)
    if not is_inside.any(1).all():
        raise ValueError("a window of it lies in the padding alone")
    first = np.take_along_axis(at, is_inside.argmax(1)[:, None], 1)
    return np.where(is_inside, at, first)


def places_of_adaptive_windows(count: int, size: int) -> np.ndarray:
    """The same of windows that share the axis, of which some are longer than others."""
    at = np.arange(count)
    first, end = at * size // count, -(-(at + 1) * size // count)
    within = first[:, None] + np.arange((end - first).max())
    return np.where(within < end[:, None], within, first[:, None])


def maxima_and_places(
    emit: Callable[[relax.Expr], relax.Expr],
    data: relax.Expr,
    places: Sequence[np.ndarray],
    is_column_major: bool = False,
) -> tuple[relax.Expr, relax.Expr]:
    """The maxima of (N, C, *spatial), and the number of the first in its plane, int64.

    `places` are those of each spatial axis.
    """
    outer, extents = shape_of(data)[:2], shape_of(data)[2:]
    for axis, each in enumerate(places):
        data = emit(op.take(data, constant(each), 2 + 2 * axis))
    counts, sizes = zip(*(each.shape for each in places))
    axes = [2 + 2 * axis for axis in range(len(places))]
    moved = op.permute_dims(data, [0, 1, *axes, *(axis + 1 for axis in axes)])
    windows = emit(op.reshape(emit(moved), [*outer, *counts, math.prod(sizes)]))

    in_order = range(len(places)) if not is_column_major else range(len(places))[::-1]
    numbers = np.zeros([1] * 2 * len(places), "int64")
    for axis in in_order:
        shape = [1] * 2 * len(places)
        shape[axis], shape[axis + len(places)] = places[axis].shape
        numbers = numbers * extents[axis] + places[axis].reshape(shape)
    first = np.arange(math.prod(counts)).reshape(counts) * math.prod(sizes)
    best = emit(op.add(op.argmax(windows, -1), constant(first)))
    return emit(op.max(windows, [-1])), emit(op.take(constant(numbers.reshape(-1)), best, 0))
