"""Resize: of images by `relax.image.resize2d` where that is ONNX's, else by what is around each coordinate.

Coordinates are those of element centres, and computed in float32 in the order of ONNX Runtime's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tvm import relax, te

from ..._onnx.resizing import ROUND, How, how_of, taps_at
from .._resample import resampled
from .node import Node, constant
from .open_resizing import TIE, along
from .sizes import INSTEAD, Extent, Size, expressions, is_same, typical

op = relax.op
METHODS = "nearest", "linear", "cubic"
OF_IMAGES = "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"
OF_LENGTH = "align_corners", "tf_crop_and_resize"  # coordinates that depend on the size of the result


@dataclass(frozen=True)
class _Axis:
    """A resized axis; `scale` is outputs per input, the given one, or the ratio of the sizes."""

    before: int
    after: int
    scale: np.float32
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def is_by_ratio(self) -> bool:
        return bool(np.float32(self.after) / np.float32(self.before) == self.scale)

    def coordinates(self, kind: str) -> np.ndarray:
        pixels, half = np.arange(self.after, dtype="float32"), np.float32(0.5)
        before, after = np.float32(self.before), np.float32(self.after)
        last, steps = before - 1, np.float32(max(self.after - 1, 1))
        if kind == "asymmetric":
            return pixels / self.scale
        if kind == "align_corners":
            return pixels * last / steps
        if kind == "tf_crop_and_resize":
            start, end = map(np.float32, self.region)
            if self.after == 1:
                return np.array([half * (start + end) * last])
            return start * last + pixels * (end - start) * last / steps
        centers = (pixels + half) / self.scale - half
        if kind == "pytorch_half_pixel" and self.after == 1:
            return np.zeros(1, "float32")
        if kind == "half_pixel_symmetric":
            return before / 2 * (1 - after / (self.scale * before)) + centers
        return centers


def resize(n: Node) -> relax.Expr:
    how = how_of(n.attributes, "half_pixel", "round_prefer_floor")
    known = (*OF_IMAGES, "half_pixel_symmetric", "tf_crop_and_resize")
    if how.mode not in METHODS:
        n.refuse(f"the mode {how.mode} is not supported")
    if how.coordinates not in known:
        n.refuse(f"the coordinates {how.coordinates} are not supported, only {', '.join(known)}")
    if how.mode != "nearest":
        n.only_floats()
    if _is_open(n):
        return _of_unknown_sizes(n, how)
    axes = _axes(n, how)
    if how.mode == "nearest":
        return _nearest(n, axes, how)
    if _is_of_images(n, axes, how):
        return op.image.resize2d(
            n.data(0),
            [axes[axis].after if axis in axes else n.shape(0)[axis] for axis in (2, 3)],
            method=how.mode,
            coordinate_transformation_mode=how.coordinates,
            rounding_method="",
            cubic_alpha=how.coefficient,
        )
    taps = {
        axis: taps_at(each.coordinates(how.coordinates), each.before, float(each.scale), how)
        for axis, each in axes.items()
    }
    return _outside(n, resampled(n.emit, n.data(0), taps), axes, how)


def _axes(n: Node, how: How) -> dict[int, _Axis]:
    """What changes, by axis."""
    shape = n.shape(0)
    axes = [axis % len(shape) for axis in n.attribute("axes", range(len(shape)))]
    policy = n.attribute("keep_aspect_ratio_policy", "stretch")
    crops = how.coordinates == "tf_crop_and_resize"
    if crops and not n.has(1):
        n.refuse("its region, the input 1, is not given")
    n.inputs[1]  # which only those coordinates read
    regions = n.value(1).reshape(2, -1).T.tolist() if crops else [(0.0, 1.0)] * len(axes)
    by_sizes = n.has(3) and n.shape(3) != (0,)
    given = n.integers(3) if by_sizes else n.value(2).astype("float32").tolist()
    by_others = crops or policy != "stretch"
    known = [at for at, axis in enumerate(axes) if _is_known(n, axis, given[at], by_sizes, by_others)]
    axes, regions, given = ([each[at] for at in known] for each in (axes, regions, given))
    before = np.array([shape[axis] for axis in axes], "float32")
    if by_sizes:
        after = np.array(given, "int64")
        scales = after.astype("float32") / before
        if policy != "stretch":
            scales = np.full_like(scales, min(scales) if policy == "not_larger" else max(scales))
            after = np.floor(before * scales + np.float32(0.5)).astype("int64")
    else:
        scales = np.array(given, "float32")
        after = np.floor(before * scales).astype("int64")
    found = {
        axis: _Axis(shape[axis], int(size), scale, tuple(of_axis))
        for axis, size, scale, of_axis in zip(axes, after, scales, regions)
    }
    changed = {
        axis: each
        for axis, each in found.items()
        if crops or each.after != each.before or abs(each.scale - 1) > TIE
    }
    for axis, each in changed.items():
        if 0 in (each.before, each.after):
            n.refuse(f"the axis {axis} has no elements before or after it")
        if how.coordinates in OF_LENGTH and not each.is_by_ratio:
            n.refuse(
                f"the scale {each.scale} makes no whole number of {each.before} pixels, where ONNX and ONNX "
                f"Runtime disagree on what {how.coordinates} is: export it with sizes"
            )
    return changed


def _is_open(n: Node) -> bool:
    """Whether only the run knows the sizes of the images, or those that they get."""
    after = n.integers(3) if n.has(3) else []
    return n.rank() == 4 and any(isinstance(size, Size) for size in (*n.shape(0)[2:], *after[-2:]))


def _of_unknown_sizes(n: Node, how: How) -> relax.Expr:
    """By `relax.image.resize2d`, where it computes the same for all sizes, or else as it runs."""
    shape = n.shape(0)
    axes = [axis % 4 for axis in n.attribute("axes", range(4))]
    n.inputs[1]  # which other coordinates read
    by_sizes = n.has(3) and n.shape(3) != (0,)
    given = n.integers(3) if by_sizes else n.value(2).astype("float32").tolist()
    after: list[Extent] = list(shape)
    ratios: list[Fraction | None] = [Fraction(1)] * 4
    scales: list[float | None] = [None] * 4
    for axis, each in zip(axes, given):
        if by_sizes:
            after[axis], ratios[axis] = each, _ratio(shape[axis], each)
        else:
            after[axis], ratios[axis], scales[axis] = *_scaled(n, shape[axis], each, how), each
    if (
        ratios[:2] != [1, 1]
        or how.antialias
        or (how.mode == "cubic" and how.exclude_outside)
        or how.coordinates == "tf_crop_and_resize"
        or n.attribute("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        n.refuse(f"it resizes images whose size only the run knows in a way that depends on it: {INSTEAD}")
    if how.mode == "nearest" and all(_is_repeated(ratio, how) for ratio in ratios):
        return op.image.resize2d(
            n.data(0),
            relax.ShapeExpr(after[2:]),
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    if how.mode == "nearest" and all(_is_every(ratio, how) for ratio in ratios):
        steps = [each.denominator for each in ratios[2:] if each is not None]
        return n.emit_of_shape(op.strided_slice(n.data(0), [2, 3], [0, 0], shape[2:], steps), after)
    # With the corners aligned, TVM cannot compile every division by a size that may be 1, and with asymmetric
    # coordinates no product of a place and a scale.
    if how.mode != "nearest" and how.coordinates in OF_IMAGES[:2] and (by_sizes or None not in ratios):
        return op.image.resize2d(
            n.data(0),
            relax.ShapeExpr(after[2:]),
            method=how.mode,
            coordinate_transformation_mode=how.coordinates,
            rounding_method="",
            cubic_alpha=how.coefficient,
        )
    return _as_it_runs(n, after, ratios, scales, how)


def _as_it_runs(
    n: Node, after: list[Extent], ratios: list[Fraction | None], scales: list[float | None], how: How
) -> relax.Expr:
    """Sums of pixels are in float32."""
    result, dtype = n.data(0), n.dtype()
    computed = "float32" if how.mode != "nearest" and dtype == "float16" else dtype
    if computed != dtype:
        result = n.emit(op.astype(result, computed))
    for axis in (3, 2):
        if ratios[axis] != 1:
            (size,) = expressions([after[axis]])
            result = n.emit(n.builder.emit_te(_along(axis, scales[axis], how), result, size))
    return op.astype(result, dtype) if computed != dtype else result


def _along(axis: int, scale: float | None, how: How) -> Callable[..., te.Tensor]:
    return lambda data, after: along(data, axis, after, scale, how)


def _ratio(before: Extent, after: Extent) -> Fraction | None:
    """None where it is another one for other sizes."""
    if isinstance(before, int) and isinstance(after, int):
        return Fraction(after, before)
    large, small = (after, before) if typical(after) >= typical(before) else (before, after)
    times = round(typical(large) / typical(small))
    if not is_same(small * times, large):
        return None
    return Fraction(times) if large is after else Fraction(1, times)


def _scaled(n: Node, size: Extent, scale: float, how: How) -> tuple[Extent, Fraction | None]:
    """How many pixels that are, and the scale, where it is their ratio for all sizes."""
    ratio, sizes = Fraction(scale).limit_denominator(64), np.arange(1, 2**16)
    rounded = np.floor(sizes.astype("float32") * np.float32(scale))
    if not np.array_equal(rounded, sizes * ratio.numerator // ratio.denominator):
        n.refuse(f"its scale of {size} pixels, {scale}, is no ratio of small numbers: {INSTEAD}")
    pixels, after = size * ratio.numerator, size * ratio.numerator // ratio.denominator
    # Where corners are aligned, ONNX and ONNX Runtime disagree about other sizes.
    if how.coordinates == "align_corners" and pixels % ratio.denominator:
        n.refuse(f"its scale of {size} pixels makes no whole number of them: {INSTEAD}")
    return after, ratio if is_same(after * ratio.denominator, pixels) else None


def _is_repeated(ratio: Fraction | None, how: How) -> bool:
    """Whether each pixel comes as often as any other, in order."""
    return ratio is not None and ratio.denominator == 1 and _repeats(*_sample(ratio, how))


def _is_every(ratio: Fraction | None, how: How) -> bool:
    """Whether the pixels are the first, and each at the same distance behind it."""
    if ratio is None or ratio.numerator != 1 or ratio.denominator & (ratio.denominator - 1):
        return False  # of others, the scale is rounded: far enough from the first, it is another pixel
    axis, places = _sample(ratio, how)
    return np.array_equal(places, np.arange(axis.after) * ratio.denominator)


def _sample(ratio: Fraction, how: How) -> tuple[_Axis, np.ndarray]:
    axis = _Axis(64 * ratio.denominator, 64 * ratio.numerator, np.float32(ratio))
    return axis, _places(axis, how.coordinates, how.nearest_mode)


def _is_known(n: Node, axis: int, given: Any, is_size: bool, by_others: bool) -> bool:
    """Whether the size of an axis is known at import; one that only the run knows has to stay as it is."""
    size = n.shape(0)[axis]
    if isinstance(size, int):
        return True
    if by_others or given != (size if is_size else 1):
        n.refuse(f"it changes axis {axis}, whose size only the run knows: {INSTEAD}")
    return False


def _is_of_images(n: Node, axes: dict[int, _Axis], how: How) -> bool:
    """Whether `relax.image.resize2d`, which knows sizes alone, computes this."""
    return (
        n.rank() == 4
        and set(axes) <= {2, 3}
        and how.coordinates in OF_IMAGES
        and not (how.antialias or (how.mode == "cubic" and how.exclude_outside))
        and all(each.is_by_ratio for each in axes.values())
        and not (how.coordinates == "align_corners" and 1 in [each.after for each in axes.values()])
    )


def _nearest(n: Node, axes: dict[int, _Axis], how: How) -> relax.Expr:
    """By rows and columns that are chosen here: TVM's are others where positions are rounded."""
    places = {axis: _places(each, how.coordinates, how.nearest_mode) for axis, each in axes.items()}
    result, shape = n.data(0), n.shape(0)
    if n.rank() == 4 and set(axes) == {2, 3} and all(map(_repeats, axes.values(), places.values())):
        return op.image.resize2d(
            result,
            [axes[axis].after for axis in (2, 3)],
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    for axis, at in places.items():
        if not np.array_equal(at, np.arange(shape[axis])):
            result = n.emit(op.take(result, constant(at), axis))
    return _outside(n, result, axes, how)


def _repeats(axis: _Axis, places: np.ndarray) -> bool:
    """Whether each element comes as often as any other, in order."""
    times, rest = divmod(axis.after, axis.before)
    return not rest and np.array_equal(places, np.arange(axis.after) // times)


def nearest_places(before: int, after: int, coordinates: str, rounding: str) -> np.ndarray:
    """For each pixel of the result the one that it shows, where sizes are given."""
    axis = _Axis(before, after, np.float32(after) / np.float32(before))
    return _places(axis, coordinates, rounding)


def _places(axis: _Axis, coordinates: str, rounding: str) -> np.ndarray:
    """Rounded as ONNX Runtime does."""
    exact = axis.coordinates(coordinates).astype("float64")
    between = np.floor(exact) + 0.5
    exact = np.where(np.abs(exact - between) < TIE, between, exact) if "round" in rounding else exact
    return np.clip(ROUND[rounding](exact), 0, axis.before - 1).astype("int64")


def _outside(n: Node, result: relax.Expr, axes: dict[int, _Axis], how: How) -> relax.Expr:
    """What is outside of the image that is cropped has a value of its own."""
    if how.coordinates != "tf_crop_and_resize":
        return result
    for axis, each in axes.items():
        at = each.coordinates(how.coordinates)
        is_outside = ((at < 0) | (at > each.before - 1)).reshape(-1, *[1] * (n.rank() - axis - 1))
        value = n.number(how.extrapolation_value)
        result = n.emit(op.where(constant(is_outside), value, result)) if is_outside.any() else result
    return result
