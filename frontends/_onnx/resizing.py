"""What the attributes of a Resize say, and which elements it sums at a coordinate, for both TVMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _taps

FLOAT = "float32"
ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    "round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass
class How:
    """The attributes that say how to interpolate."""

    mode: str
    coordinates: str
    nearest_mode: str
    coefficient: float
    exclude_outside: bool
    antialias: bool
    extrapolation_value: float
    from_above: bool = False  # whether to take the element behind the coordinate where the result is smaller


def how_of(attrs: Mapping[str, Any], coordinates: str, nearest_mode: str) -> How:
    """By the attributes of a node, and what coordinates and rounding are where it does not say so."""

    def text(name: str, default: str) -> str:
        return attrs.get(name, default.encode()).decode()

    how = How(
        text("mode", "nearest"),
        text("coordinate_transformation_mode", coordinates),
        text("nearest_mode", nearest_mode),
        attrs.get("cubic_coeff_a", -0.75),
        bool(attrs.get("exclude_outside", 0)),
        bool(attrs.get("antialias", 0)),
        attrs.get("extrapolation_value", 0.0),
    )
    if how.mode == "nearest":
        how.antialias = False
    return how


def taps_at(at: np.ndarray, size: int, scale: float | None, how: How) -> _taps.Taps:
    """At these coordinates of an axis of this size; `scale` is outputs per input."""
    if how.mode == "nearest":
        return _taps.nearest(ROUND[how.nearest_mode](at), size)
    if how.antialias:
        if scale is None:
            raise NotImplementedError("antialiasing by a scale that is known only at run time")
        kernel = _taps.linear_kernel if how.mode == "linear" else _taps.cubic_kernel(how.coefficient)
        support = 1 if how.mode == "linear" else 2
        return _taps.antialiased(at.astype("float64"), 1 / scale, size, kernel, support, how.exclude_outside)
    if how.mode == "cubic":
        return _taps.cubic(at, size, how.coefficient, how.exclude_outside)
    return _taps.linear(at, size)
