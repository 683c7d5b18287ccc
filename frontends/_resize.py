"""Resizing by precomputed positions and weights, for what `relay.image.resize*` cannot express.

Relay's operators use the ratio of the sizes only, while PyTorch and ONNX also resize by a given scale, which
differs from that ratio if its product with the input's size is not an integer. This module turns the `Taps`
of each axis into operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from tvm import relay

from ._taps import Taps

MAX_GATHERED = 8  # taps; for more, a multiplication by the matrix of weights is faster


def resample(
    data: relay.Expr, shape: Sequence[object], dtype: str, taps_by_axis: Mapping[int, Taps]
) -> relay.Expr:
    """The data, of this shape and dtype, resized along the given axes.

    Weighted sums are in float32, or in float64 for float64. Extents of other axes need not be known.
    """
    weighted = any(taps.weights is not None for taps in taps_by_axis.values())
    computed = "float64" if dtype == "float64" else "float32"
    extents = list(shape)
    result = relay.cast(data, computed) if weighted and dtype != computed else data
    for axis, taps in taps_by_axis.items():
        result = _along(result, axis, extents, taps, computed)
        extents[axis] = len(taps.indices)
    return relay.cast(result, dtype) if weighted and dtype != computed else result


def resample_bytes(data: relay.Expr, shape: Sequence[object], taps_by_axis: Mapping[int, Taps]) -> relay.Expr:
    """As `resample`, of uint8: as PyTorch on CPUs, by weights of 16 bits, and rounded along each axis."""
    extents = list(shape)
    for axis, taps in sorted(taps_by_axis.items(), reverse=True):
        if extents[axis] == len(taps.indices):
            continue
        taps, bits = taps.in_integers()
        total = _along(relay.cast(data, "int32"), axis, extents, taps, "int32")
        total = relay.right_shift(total + relay.const(1 << (bits - 1)), relay.const(bits))
        data = relay.cast(relay.clip(total, 0, 255), "uint8")
        extents[axis] = len(taps.indices)
    return data


def _along(data: relay.Expr, axis: int, shape: list[object], taps: Taps, dtype: str) -> relay.Expr:
    outputs, count = taps.indices.shape
    if taps.weights is None:
        unchanged = np.array_equal(taps.indices[:, 0], np.arange(taps.size))
        return data if unchanged else _take(data, taps.indices[:, 0], axis)
    if count > MAX_GATHERED and all(isinstance(extent, int) for extent in shape):
        last = [place for place in range(len(shape)) if place != axis] + [axis]
        rows = relay.reshape(relay.transpose(data, last), [-1, taps.size])
        product = relay.nn.dense(rows, relay.const(taps.matrix(), dtype))
        product = relay.reshape(product, [*(shape[place] for place in last[:-1]), outputs])
        return relay.transpose(product, [int(place) for place in np.argsort(last)])
    broadcast = [outputs if place == axis else 1 for place in range(len(shape))]
    terms = [
        _take(data, taps.indices[:, tap], axis) * relay.const(taps.weights[:, tap].reshape(broadcast), dtype)
        for tap in range(count)
    ]
    return reduce(relay.add, terms)


def _take(data: relay.Expr, indices: np.ndarray, axis: int) -> relay.Expr:
    return relay.take(data, relay.const(indices.astype("int32")), axis=axis, mode="fast")
