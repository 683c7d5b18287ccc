"""Resizing by positions and weights that are known at import, for what `relax.image.resize2d` lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tvm import relax

from .._taps import Taps
from ._onnx.node import constant, dtype_of, shape_of

op = relax.op


def resampled(
    emit: Callable[[relax.Expr], relax.Expr], data: relax.Expr, taps_by_axis: Mapping[int, Taps]
) -> relax.Expr:
    """The data, resized along the given axes. Weighted sums are in float32, or in float64 for float64.

    Those of integers are rounded to the nearest one that their type holds, along each axis, as in torch.
    """
    dtype = dtype_of(data)
    is_weighted = any(taps.weights is not None for taps in taps_by_axis.values())
    computed = dtype if dtype == "float64" or not is_weighted else "float32"
    result = emit(op.astype(data, computed))
    for axis, taps in taps_by_axis.items():
        result = emit(_along(result, axis, taps, computed))
        if is_weighted and "int" in dtype:
            bounds = np.iinfo(dtype)
            result = emit(op.clip(op.round(result), float(bounds.min), float(bounds.max)))
    return op.astype(result, dtype)


def resampled_bytes(
    emit: Callable[[relax.Expr], relax.Expr], data: relax.Expr, taps_by_axis: Mapping[int, Taps]
) -> relax.Expr:
    """As `resampled`, of uint8: as torch on CPUs, by weights of 16 bits, and rounded along each axis."""
    result = emit(op.astype(data, "int32"))
    for axis, taps in sorted(taps_by_axis.items(), reverse=True):
        if shape_of(data)[axis] == len(taps.indices):
            continue
        taps, bits = taps.in_integers()
        total = emit(_along(result, axis, taps, "int32"))
        half, bits = relax.const(1 << (bits - 1), "int32"), relax.const(bits, "int32")
        total = emit(op.right_shift(emit(op.add(total, half)), bits))
        result = emit(op.minimum(op.maximum(total, relax.const(0, "int32")), relax.const(255, "int32")))
    return op.astype(result, "uint8")


def _along(data: relax.Expr, axis: int, taps: Taps, dtype: str) -> relax.Expr:
    if taps.weights is None:
        return op.take(data, constant(taps.indices[:, 0]), axis)
    behind = [1] * (len(shape_of(data)) - axis - 1)
    weights = constant(taps.weights.astype(dtype).reshape(*taps.weights.shape, *behind))
    return op.sum(op.multiply(op.take(data, constant(taps.indices), axis), weights), axis + 1)
