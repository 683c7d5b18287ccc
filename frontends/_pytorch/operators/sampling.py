"""Sampling of images by grids of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay

from .converter import Convert, Converter, Inputs, InputTypes, NotConverted
from .pooling import numbers

METHODS, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")  # by torch's number
REFLECTION = PADDINGS.index("reflection")


def grid_sampler(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own is for float32, and of volumes divides by zero where one of one pixel is reflected."""
    data, grid, method, padding, align_corners = inputs
    spatial = converter.infer_shape(data)[2:]
    if len(spatial) == 2:
        grid = relay.transpose(grid, [0, 3, 1, 2])
        return relay.image.grid_sample(
            data, grid, METHODS[method], "NCHW", PADDINGS[padding], bool(align_corners)
        )
    if padding == REFLECTION and align_corners and 1 in spatial:
        raise NotConverted("reflection in a volume of one pixel is not supported with align_corners")
    dtype = str(converter.infer_type(data).dtype)
    if dtype == "float32":
        return converter.stock["aten::grid_sampler"](inputs, input_types)
    if dtype != "float16":
        raise NotConverted(f"of volumes of {dtype} it is not supported, only of float32 and float16")
    wide = [relay.cast(data, "float32"), relay.cast(grid, "float32"), method, padding, align_corners]
    return relay.cast(converter.stock["aten::grid_sampler"](wide, input_types), dtype)


def affine_grid_generator(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's converter lacks it."""
    theta, size, align_corners = inputs
    batch, _channels, *spatial = numbers(size)
    dtype = str(converter.infer_type(theta).dtype)
    computed = "float32" if dtype == "float16" else dtype
    theta = relay.cast(theta, computed) if computed != dtype else theta
    axes = [_centers(extent, bool(align_corners)) for extent in spatial]
    # Coordinates come x first, and a 1 for the translation last.
    points = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(spatial)], axis=-1)
    flat = points.reshape(1, -1, len(spatial) + 1)
    points = np.broadcast_to(flat, (batch, *flat.shape[1:]))
    grid = relay.nn.batch_matmul(relay.const(points.astype(computed), computed), theta)
    grid = relay.reshape(grid, [batch, *spatial, len(spatial)])
    return relay.cast(grid, dtype) if computed != dtype else grid


def _centers(size: int, align_corners: bool) -> np.ndarray:
    """The pixel centres of an image from -1 to 1; with `align_corners`, the outermost are at the ends."""
    if size == 1:
        return np.zeros(1)
    centers = np.linspace(-1, 1, size)
    return centers if align_corners else centers * (size - 1) / size


CONVERTERS: dict[str, Convert] = {
    "aten::grid_sampler": grid_sampler,
    "aten::affine_grid_generator": affine_grid_generator,
}
