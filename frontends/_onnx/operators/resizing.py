"""Resize and Upsample.

Convention: coordinates are those of element centres, with element i of the input at i, and are computed in
float32 in the same order of operations as in ONNX Runtime. `scale` is outputs per input: the given one, or
the ratio of the sizes if sizes are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tvm_passes.engine.expressions import shape_of_type, type_of

from tvm import relay

from ... import _resize
from ..._fold import constant
from ..resizing import FLOAT, How, how_of, taps_at
from ._common import Attrs, Converter, Inputs, Params, axis_of, dtype_of, known, opset_of, rank_of, sizes_of

IMAGE_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
SAME_AS_RELAYS = {"asymmetric", "half_pixel", "align_corners"}  # coordinate modes, if the scale is the ratio
OF_LENGTH = {"align_corners", "tf_crop_and_resize"}  # coordinate modes that depend on the output's size


@dataclass
class _Axis:
    """A resized axis; expressions are scalars, constant if known."""

    size: relay.Expr  # of the input, float32
    length: relay.Expr  # of the output, int64
    scale: relay.Expr  # float32
    start: Any = None  # of the region of interest, in [0, 1]
    end: Any = None


def resize(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes the ratio of the sizes for the scale, and lacks axes, policy and antialiasing."""
    data, opset = inputs[0], opset_of(importer)
    rank = rank_of(data)
    if opset < 11:  # the inputs had another order, and there were no coordinate modes
        roi, scales, wanted = None, inputs[1], None
        how = how_of(attrs, "asymmetric", "floor")
        how.from_above = how.mode == "nearest"  # by ONNX's example and ONNX Runtime
    else:
        roi, scales, wanted = (_unless_empty(each) for each in (inputs[1], inputs[2], inputs[3]))
        how = how_of(attrs, "half_pixel", "round_prefer_floor")
    axes = [axis_of(axis, rank) for axis in attrs.get("axes", range(rank))]
    policy = attrs.get("keep_aspect_ratio_policy", b"stretch").decode()
    if (scales is None) == (wanted is None):
        raise NotImplementedError("it needs either scales or sizes")
    crops = how.coordinates == "tf_crop_and_resize"
    region = known(roi, "region of interest") if crops else None
    sizes = [relay.cast(_element(relay.shape_of(data, "int64"), axis), FLOAT) for axis in axes]
    if wanted is not None:
        lengths = [_element(wanted, place) for place in range(len(axes))]
        factors = [relay.cast(length, FLOAT) / size for length, size in zip(lengths, sizes)]
        if policy != "stretch":
            factors = [_common_factor(factors, policy)] * len(axes)
            lengths = [_rounded(size * by) for size, by in zip(sizes, factors)]
    else:
        factors = [_element(scales, place) for place in range(len(axes))]
        lengths = [relay.cast(relay.floor(size * by), "int64") for size, by in zip(sizes, factors)]
    by_size = wanted is not None and policy == "stretch"
    fold = importer.fold_constant
    resized = {}
    for place, axis in enumerate(axes):
        each = _Axis(fold(sizes[place]), fold(lengths[place]), fold(factors[place]))
        if region is not None:
            each.start, each.end = region[place], region[place + len(axes)]
        elif _changes_nothing(each):
            continue
        if 0 in (_number(each.size), _number(each.length)):
            raise NotImplementedError("it resizes an axis from or to no elements")
        if not by_size and how.coordinates in OF_LENGTH and not _gives_whole_length(each):
            raise NotImplementedError(
                "its scales give sizes that are not whole, where ONNX and ONNX Runtime disagree on what "
                f"coordinate_transformation_mode={how.coordinates} is"
            )
        resized[axis] = each
    if _is_relays(data, resized, how, by_size):
        return _relays(importer, data, resized, how)
    return _interpolated(importer, data, resized, how)


def upsample(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own rounds sizes up, and needs at least four axes."""
    scales = inputs[1] if len(inputs) > 1 else constant(np.asarray(attrs["scales"], FLOAT))
    how = How(attrs.get("mode", b"nearest").decode(), "asymmetric", "floor", -0.75, False, False, 0.0)
    data, fold = inputs[0], importer.fold_constant
    resized = {}
    for axis in range(rank_of(data)):
        size = relay.cast(_element(relay.shape_of(data, "int64"), axis), FLOAT)
        by = _element(scales, axis)
        each = _Axis(fold(size), fold(relay.cast(relay.floor(size * by), "int64")), fold(by))
        if not _changes_nothing(each):
            resized[axis] = each
    if _is_relays(data, resized, how, False):
        return _relays(importer, data, resized, how)
    return _interpolated(importer, data, resized, how)


def _unless_empty(expr: relay.Expr | None) -> relay.Expr | None:
    """An input, or None if it is an empty tensor, which exporters write for an omitted one."""
    return None if expr is None or sizes_of(expr) == (0,) else expr


def _element(vector: relay.Expr, place: int) -> relay.Expr:
    return relay.take(vector, relay.const(place), axis=0)


def _common_factor(factors: list[relay.Expr], policy: str) -> relay.Expr:
    """The scale of all axes that keeps the aspect ratio: within the wanted sizes, or around them."""
    if policy not in ("not_larger", "not_smaller"):
        raise NotImplementedError(f"its attribute keep_aspect_ratio_policy={policy} is not known")
    together = relay.stack(factors, 0)
    return relay.min(together) if policy == "not_larger" else relay.max(together)


def _rounded(length: relay.Expr) -> relay.Expr:
    """The nearest integer, halves up."""
    return relay.cast(relay.floor(length + relay.const(0.5)), "int64")


def _number(expr: relay.Expr) -> Any:
    return expr.data.numpy().item() if isinstance(expr, relay.Constant) else None


def _changes_nothing(axis: _Axis) -> bool:
    return _number(axis.scale) == 1 or (
        None not in (_number(axis.size), _number(axis.length))
        and _number(axis.size) == _number(axis.length)
        and _number(axis.scale) is not None
        and abs(_number(axis.scale) - 1) < 1e-6
    )


def _gives_whole_length(axis: _Axis) -> bool:
    size, scale = _number(axis.size), _number(axis.scale)
    if scale is None:
        return False
    return float(scale).is_integer() or (size is not None and abs(size * scale - round(size * scale)) < 1e-4)


def _is_relays(data: relay.Expr, resized: dict[int, _Axis], how: How, by_size: bool) -> bool:
    """Whether Relay's operator for images, which passes recognize, computes exactly this."""
    rank = rank_of(data)
    coordinates = how.coordinates
    if rank not in IMAGE_LAYOUTS or not resized or min(resized) < 2 or dtype_of(data) != FLOAT:
        return False
    is_late = None in [_number(each.length) for each in resized.values()]
    if (is_late and rank != 4) or how.antialias or how.exclude_outside:
        return False
    for each in resized.values():
        size, length, scale = _number(each.size), _number(each.length), _number(each.scale)
        by_ratio = by_size or (scale is not None and scale == int(scale))
        if not by_ratio and (None in (size, length, scale) or abs(length / size / scale - 1) > 1e-7):
            return False
        if how.mode == "nearest":
            is_whole = scale is not None and scale == int(scale)
            at_corners = (coordinates, how.nearest_mode) == ("asymmetric", "floor")
            at_centers = coordinates in ("half_pixel", "pytorch_half_pixel") and is_whole
            at_centers = at_centers and how.nearest_mode.startswith("round")
            if not (at_corners and (is_whole or is_late)) and not (at_centers and not is_late):
                return False
        elif coordinates == "pytorch_half_pixel":
            if length is None or length < 2:
                return False
        elif coordinates not in SAME_AS_RELAYS or (coordinates == "align_corners" and length == 1):
            return False
    return True


def _relays(importer: ModuleType, data: relay.Expr, resized: dict[int, _Axis], how: How) -> relay.Expr:
    rank = rank_of(data)
    shape = relay.shape_of(data, "int64")
    lengths = [
        resized[axis].length if axis in resized else importer.fold_constant(_element(shape, axis))
        for axis in range(2, rank)
    ]
    late = None in [_number(length) for length in lengths]
    size = importer.fold_constant(relay.stack(lengths, 0)) if late else [_number(n) for n in lengths]
    method = {"nearest": "nearest_neighbor"}.get(how.mode, how.mode)
    if how.mode == "nearest":  # by whole factors, where centres and corners lead to the same element
        coordinates, rounding = "asymmetric", "floor"
    else:
        coordinates = how.coordinates.replace("pytorch_", "")
        rounding = ""
    make = getattr(relay.image, f"resize{rank - 2}d")
    return make(data, size, None, IMAGE_LAYOUTS[rank], method, coordinates, rounding, how.coefficient, 0, 0.0)


def _interpolated(importer: ModuleType, data: relay.Expr, resized: dict[int, _Axis], how: How) -> relay.Expr:
    """Resize along each axis from the elements around each coordinate."""
    dtype = dtype_of(data)
    if how.mode not in ("nearest", "linear", "cubic"):
        raise NotImplementedError(f"its attribute mode={how.mode} is not known")
    computed = dtype if how.mode == "nearest" or dtype == "float64" else FLOAT
    result = data if computed == dtype else relay.cast(data, computed)
    outside: dict[int, relay.Expr] = {}
    for axis, each in resized.items():
        at = importer.fold_constant(_coordinates(each, how))
        size = _number(each.size)
        if how.coordinates == "tf_crop_and_resize":
            last = each.size - relay.const(1.0)
            outside[axis] = relay.logical_or(at < relay.const(0.0), at > last)
        if isinstance(at, relay.Constant) and size is not None:
            taps = taps_at(at.data.numpy(), int(size), _number(each.scale), how)
            shape = shape_of_type(type_of(result)) or [None] * rank_of(result)
            result = _resize.resample(result, shape, computed, {axis: taps})
        elif how.antialias:
            raise NotImplementedError("antialiasing by a scale that is known only at run time")
        else:
            result = _along(result, axis, at, each.size, how, computed)
    for axis, is_outside in outside.items():
        shape_ = [-1 if place == axis else 1 for place in range(rank_of(data))]
        value = relay.const(how.extrapolation_value, computed)
        result = relay.where(relay.reshape(is_outside, shape_), value, result)
    return result if computed == dtype else relay.cast(result, dtype)


def _coordinates(axis: _Axis, how: How) -> relay.Expr:
    """The coordinates of the output elements in the input, a vector."""
    half, one, zero = (relay.const(value, FLOAT) for value in (0.5, 1.0, 0.0))
    place = relay.arange(relay.const(0, "int64"), axis.length, relay.const(1, "int64"), "int64")
    place, length = relay.cast(place, FLOAT), relay.cast(axis.length, FLOAT)
    centers = (place + half) / axis.scale - half
    if how.coordinates == "half_pixel":
        return centers
    if how.coordinates == "tf_half_pixel_for_nn":
        return (place + half) / axis.scale
    if how.coordinates == "pytorch_half_pixel":
        return relay.where(length > one, centers, place * zero)
    if how.coordinates == "asymmetric":
        at = place / axis.scale
        return relay.where(axis.scale < one, relay.ceil(at), at) if how.from_above else at
    if how.coordinates == "align_corners":
        return place * ((axis.size - one) / relay.maximum(length - one, one))
    if how.coordinates == "half_pixel_symmetric":
        adjustment = length / (axis.scale * axis.size)
        centre = axis.size * half
        return centre * (one - adjustment) + centers
    if how.coordinates == "tf_crop_and_resize":
        start, end = (relay.const(float(value), FLOAT) for value in (axis.start, axis.end))
        last = axis.size - one
        along = start * last + place * (end - start) * last / relay.maximum(length - one, one)
        return relay.where(length > one, along, half * (start + end) * last + place * zero)
    raise NotImplementedError(
        f"its attribute coordinate_transformation_mode={how.coordinates} is not supported"
    )


def _along(data: relay.Expr, axis: int, at: relay.Expr, size: relay.Expr, how: How, dtype: str) -> relay.Expr:
    """Resize along one axis, by coordinates that are known only at run time."""
    half, one = relay.const(0.5, FLOAT), relay.const(1.0, FLOAT)
    zero, last = relay.const(0.0, FLOAT), size - one

    def element(place: relay.Expr) -> relay.Expr:
        inside = relay.minimum(relay.maximum(place, zero), last)
        return relay.take(data, relay.cast(inside, "int32"), axis=axis)

    if how.mode == "nearest":
        rounded = {
            "round_prefer_floor": lambda: relay.ceil(at - half),
            "round_prefer_ceil": lambda: relay.floor(at + half),
            "floor": lambda: relay.floor(at),
            "ceil": lambda: relay.ceil(at),
        }
        return element(rounded[how.nearest_mode]())
    before = relay.floor(at)
    t = at - before
    if how.mode == "linear":
        weights = {0: one - t, 1: t}
    else:
        weights = {k: _cubic(t, k, how.coefficient) for k in (-1, 0, 1, 2)}
    places = {k: before + relay.const(float(k)) for k in weights}
    if how.mode == "cubic" and how.exclude_outside:
        for k, place in places.items():
            inside = relay.logical_and(place >= zero, place <= last)
            weights[k] = relay.where(inside, weights[k], zero)
        total = weights[-1] + weights[0] + weights[1] + weights[2]
        weights = {k: weight / total for k, weight in weights.items()}
    shape = [-1 if place == axis else 1 for place in range(rank_of(data))]
    result = None
    for k, weight in weights.items():
        term = element(places[k]) * relay.reshape(relay.cast(weight, dtype), shape)
        result = term if result is None else result + term
    return result


def _cubic(t: relay.Expr, k: int, a: float) -> relay.Expr:
    """The cubic convolution kernel at the distance of t, in [0, 1), from k."""

    def c(value: float) -> relay.Expr:
        return relay.const(value, FLOAT)

    x = t - c(float(k)) if k <= 0 else c(float(k)) - t
    if k in (0, 1):
        return ((c(a + 2) * x - c(a + 3)) * x) * x + c(1.0)
    return ((x - c(5.0)) * x + c(8.0)) * x * c(a) - c(4 * a)


CONVERTERS: dict[str, Converter] = {"Resize": resize, "Upsample": upsample}
