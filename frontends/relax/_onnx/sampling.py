"""Operators that read images between their pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import topi_ext

from tvm import relax

from .node import Convert, Node, constant

op = relax.op


def converters() -> dict[str, Convert]:
    return {"GridSample": _grid_sample, "Resize": _resize, "RoiAlign": _roi_align}


METHODS = "nearest", "linear", "cubic"
COORDINATES = "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
TIE = 1e-6  # so near to the middle of two pixels, ONNX Runtime takes the one that is preferred


def _resize(n: Node) -> relax.Expr:
    """By `relax.image.resize2d`, whose scale is that of the sizes: ONNX's has to be the same."""
    method, coordinates = n.attribute("mode"), n.attribute("coordinate_transformation_mode")
    if method != "nearest":
        n.only_floats()
    if n.rank() != 4:
        n.refuse(f"data of {n.rank()} axes is not supported, only images of 4")
    if n.attribute("antialias") or n.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        n.refuse("antialias and keep_aspect_ratio_policy are not supported")
    if method not in METHODS:
        n.refuse(f"the mode {method} is not supported")
    if coordinates not in COORDINATES:
        n.refuse(f"the coordinates {coordinates} are not supported, only {', '.join(COORDINATES)}")
    if method == "cubic" and n.attribute("exclude_outside"):
        n.refuse("exclude_outside is not supported")
    for name in ("exclude_outside", "extrapolation_value", "cubic_coeff_a", "nearest_mode"):
        n.attribute(name)
    n.inputs[1]  # the regions, which only other coordinates read
    before, after = n.shape(0), _extents(n)
    if after[:2] != before[:2]:
        n.refuse(f"only the last two axes may change, not {list(before)} to {list(after)}")
    if after == before:
        return n.data(0)
    if method == "nearest":
        return _nearest(n, before[2:], after[2:], coordinates)
    if coordinates == "align_corners" and 1 in after[2:]:
        n.refuse("align_corners of a result of one pixel is not supported")
    return op.image.resize2d(
        n.data(0),
        after[2:],
        method=method,
        coordinate_transformation_mode=coordinates,
        rounding_method="",
        cubic_alpha=n.attribute("cubic_coeff_a"),
    )


def _nearest(n: Node, before: tuple[int, ...], after: tuple[int, ...], coordinates: str) -> relax.Expr:
    """By rows and columns that are chosen here: TVM's are others where positions are rounded."""
    places = [
        nearest_places(*sizes, coordinates, n.attribute("nearest_mode")) for sizes in zip(before, after)
    ]
    repeated = [np.arange(new) // max(new // old, 1) for old, new in zip(before, after)]
    if all(new % old == 0 for old, new in zip(before, after)) and all(map(np.array_equal, places, repeated)):
        return op.image.resize2d(
            n.data(0),
            after,
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    result = n.data(0)
    for axis, at in enumerate(places, 2):
        result = n.emit(op.take(result, constant(at), axis))
    return result


def nearest_places(before: int, after: int, coordinates: str, rounding: str) -> np.ndarray:
    """For each pixel of the result the one that it shows, rounded as ONNX Runtime does."""
    pixels, half = np.arange(after, dtype="float32"), np.float32(0.5)
    scale = np.float32(after) / np.float32(before)
    if coordinates == "asymmetric":
        at = pixels / scale
    elif coordinates == "align_corners":
        at = pixels * np.float32(before - 1) / np.float32(max(after - 1, 1))
    else:
        at = (pixels + half) / scale - half
        if coordinates == "pytorch_half_pixel" and after == 1:
            at = np.zeros(1, "float32")
    exact = at.astype("float64")
    between = np.floor(exact) + 0.5
    exact = np.where(np.abs(exact - between) < TIE, between, exact) if "round" in rounding else exact
    rounded = ROUNDINGS[rounding](exact)
    return np.clip(rounded, 0, before - 1).astype("int64")


def _extents(n: Node) -> tuple[int, ...]:
    before = n.shape(0)
    axes = [axis % len(before) for axis in n.attribute("axes", range(len(before)))]
    after = list(before)
    if n.has(3) and n.inputs[3].shape != (0,):
        for axis, size in zip(axes, n.integers(3)):
            after[axis] = size
        return tuple(after)
    for axis, scale in zip(axes, n.value(2).astype("float32")):
        exact = np.float32(before[axis])
        after[axis] = int(np.floor(exact * scale))
        if np.float32(after[axis]) / exact != scale:
            n.refuse(
                f"the scale {scale} makes no whole number of {before[axis]} pixels: export it with sizes"
            )
    return tuple(after)


def _roi_align(n: Node) -> relax.Expr:
    """ONNX's `max` is of weighted neighbours, not of what lies between them."""
    n.only_floats()
    if n.attribute("mode") != "avg":
        n.refuse("only the mode avg is supported")
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    images = op.astype(op.reshape(n.data(2), (-1, 1)), n.dtype(1))
    return topi_ext.roi_align(
        n.data(0),
        n.emit(op.concat([n.emit(images), n.data(1)], 1)),
        pooled_size=(n.attribute("output_height"), n.attribute("output_width")),
        spatial_scale=n.attribute("spatial_scale"),
        sampling_ratio=n.attribute("sampling_ratio"),
        aligned=n.attribute("coordinate_transformation_mode", default) == "half_pixel",
    )


GRID_METHODS = {
    **{name: name for name in ("bilinear", "nearest", "bicubic")},
    **{"linear": "bilinear", "cubic": "bicubic"},  # since opset 20
}


def _grid_sample(n: Node) -> relax.Expr:
    n.only_floats()
    method = n.attribute("mode")
    if n.rank() != 4 or method not in GRID_METHODS:
        n.refuse(f"the mode {method} of data of {n.rank()} axes is not supported")
    return op.image.grid_sample(
        n.data(0),
        op.permute_dims(n.data(1), [0, 3, 1, 2]),  # x and y come first
        method=GRID_METHODS[method],
        layout="NCHW",
        padding_mode=n.attribute("padding_mode"),
        align_corners=bool(n.attribute("align_corners")),
    )
