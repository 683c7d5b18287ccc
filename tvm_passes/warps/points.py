"""The points of all pixels of a result, and what `grid_sample` finds around an image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tvm import relay

from ..analysis.layouts import FROM_NHWC, order_of_axes
from ..engine.expressions import known_shape, static_shape, type_of
from ..engine.rule import Refusal

BORDERS = {  # by padding_mode, and whether the centers of the outermost pixels are at -1 and 1
    ("zeros", False): "constant",
    ("zeros", True): "constant",
    ("border", False): "replicate",
    ("border", True): "replicate",
    ("reflection", False): "reflect",
    ("reflection", True): "reflect_101",
}


class Axis(NamedTuple):
    """Where the pixels along an axis are."""

    first: float
    step: float


def refusal_of_sample(sample: relay.Call, grid: relay.Expr, inputs: list[relay.Expr]) -> Refusal | None:
    """Why `sample`, at the points that a transpose of `grid` has, which `inputs` make, is no warp of ours."""
    image, moved = sample.args
    if str(sample.attrs.method) != "bilinear":
        return Refusal(f"{sample.attrs.method} rounds to other pixels where a point is between two")
    if str(sample.attrs.layout) != "NCHW" or type_of(image).dtype != "float32":
        return Refusal("the image is not in NCHW and float32")
    if None in map(static_shape, (image, sample, *inputs)):
        return Refusal("the shapes are known only at run time")
    batch, _, height, width = known_shape(sample)
    if order_of_axes(moved) != FROM_NHWC or known_shape(grid) != (batch, height, width, 2):
        return Refusal("the points are not those of an image, row by row")
    return None


def axes_of(points: np.ndarray, height: int, width: int) -> tuple[Axis, Axis] | None:
    """The pixels along x and y, if the points are (x, y, 1) of all, for one image or for each alike."""
    if points.shape[1:] != (height * width, 3):
        return None
    grid = points.astype("float64").reshape(-1, height, width, 3)
    x, y = _axis(grid[0, 0, :, 0]), _axis(grid[0, :, 0, 1])
    columns, rows = (axis.first + axis.step * np.arange(n) for axis, n in ((x, width), (y, height)))
    expected = np.stack([*np.meshgrid(columns, rows), np.ones((height, width))], -1)
    return (x, y) if np.abs(grid - expected).max() < 1e-6 else None


def from_pixels(x: Axis, y: Axis) -> np.ndarray:
    """The matrix from columns and rows of the result to its points."""
    return np.array([[x.step, 0, x.first], [0, y.step, y.first], [0, 0, 1]])


def _axis(places: np.ndarray) -> Axis:
    steps = max(len(places) - 1, 1)
    return Axis(float(places[0]), float(places[-1] - places[0]) / steps)
