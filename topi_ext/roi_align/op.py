"""The Relay operator `topi_ext.multiscale_roi_align`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._int8 import INT8, checked_out_dtype
from .._register import known
from .._tvm import (
    Attrs,
    Expr,
    TensorType,
    TupleType,
    Type,
    call,
    convert,
    dtype_of,
    script,
    te,
    tir,
    tuple_of,
)
from .._whole import whole
from .levels import least_areas

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.multiscale_roi_align"
FLOATS = ("float32", "float16")
TYPES = (*FLOATS, INT8)
CHANNEL_AXIS = {"NCHW": 1, "NHWC": 3}
# One tuple: TVM has no shapes known at run time for an operator that takes a tuple and something else.
ARGUMENTS = {
    "features_and_rois": "Feature maps, (N, C, H, W) or (N, H, W, C); then regions, (R, 5): index in the "
    "batch, x1, y1, x2, y2; or (R, 4), without the index. All float32 or float16; feature maps also int8.",
}


def multiscale_roi_align(
    features: Sequence[Expr],
    rois: Expr,
    *,
    pooled_size: int | Sequence[int],
    scales: Sequence[float],
    sampling_ratio: int,
    canonical_size: float = 224,
    canonical_level: int = 4,
    min_level: int = 2,
    eps: float = 1e-6,
    eps_in_log2: bool = False,
    aligned: bool = False,
    layout: str = "NCHW",
    feature_scales: Sequence[float] | None = None,
    out_scale: float = 1.0,
    out_dtype: str = "",
) -> Expr:
    """Pool regions to a grid of bins by their mean, each region from one level of a feature pyramid.

    The level of a region of area A is `floor(canonical_level + log2(sqrt(A) / canonical_size) + eps)`,
    clipped to the first and last level.

    Parameters
    ----------
    features : sequence of Expr
        The levels, the finest first, (N, C, H, W) or (N, H, W, C), all float32, all float16 or all int8. The
        number of channels must be known; N, H and W may be known only at run time.
    rois : Expr
        (R, 5): index in the batch, then the corners x1, y1, x2, y2 in the image; float32 or float16. R may
        be 0, and known only at run time. (R, 4), without the index, are regions of the first image.
    pooled_size : int or (int, int)
        The numbers of bins in height and width.
    scales : sequence of float
        The factors from coordinates of the image to those of each feature map.
    sampling_ratio : int
        Samples along each side of a bin; if not above 0, the length of the bin in pixels, rounded up.
    canonical_size, canonical_level, eps
        See above; as in torchvision.
    min_level : int
        The level of the first feature map.
    eps_in_log2 : bool
        Whether eps is added to the quotient instead, as torchvision did before version 0.5.
    aligned : bool
        Whether pixel centers are at half-integers, so that corners move by -0.5, and a region may have any
        size. Otherwise each side is at least one pixel of the feature map.
    layout : "NCHW" or "NHWC"
        Of the feature maps, and of the result.
    feature_scales : sequence of float, optional
        For int8 features: what one unit of each feature map stands for.
    out_scale : float
        How many units of the result one is.
    out_dtype : str
        The type of the result: int8, or that of the features, the default; for int8 features, which need it,
        also float32 or float16.

    Returns
    -------
    pooled : Expr
        (R, C, height, width) or (R, height, width, C) in bins, of the type `out_dtype`.

    Convention
    ----------
    - The level is exactly that of the formula with each operation rounded to float32.
    - Everything is computed in float32. Sample i of n in bin p is at `start + p * bin + (i + 0.5) * bin / n`.
    - A result in int8 is rounded to the nearest integer, of two equally near ones to the even one, and
      saturated to -128 to 127.
    - A sample more than one pixel outside the map (below -1, or above H or W) is 0; one nearer than that is
      moved to the border. A bin without samples is 0.
    - The result is 0 for a region with a coordinate that is NaN or infinite, with a batch index out of range,
      or with a negative area, which has no level. Nothing is read out of bounds.

    These are the conventions of torchvision's `MultiScaleRoIAlign`, which does not define the result for such
    regions. With a single feature map it assigns no levels, and neither does `roi_align`.

    >>> from topi_ext.roi_align import reference
    >>> fine, coarse = np.full((1, 1, 64, 64), 1, "float32"), np.full((1, 1, 32, 32), 2, "float32")
    >>> rois = np.float32([[0, 0, 0, 100, 100], [0, 0, 0, 120, 120]])
    >>> options = {"pooled_size": 1, "scales": [1 / 4, 1 / 8], "sampling_ratio": 2}
    >>> print(reference.multiscale_roi_align([fine, coarse], rois, **options).ravel())
    [1. 2.]
    """
    return _call(
        features,
        rois,
        pooled_size=pooled_size,
        scales=scales,
        sampling_ratio=sampling_ratio,
        by_area=True,
        canonical_size=canonical_size,
        canonical_level=canonical_level,
        min_level=min_level,
        eps=eps,
        eps_in_log2=eps_in_log2,
        aligned=aligned,
        layout=layout,
        feature_scales=feature_scales,
        out_scale=out_scale,
        out_dtype=out_dtype,
    )


def roi_align(
    data: Expr,
    rois: Expr,
    *,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool = False,
    layout: str = "NCHW",
    by_position: bool = False,
    feature_scale: float = 1.0,
    out_scale: float = 1.0,
    out_dtype: str = "",
) -> Expr:
    """`multiscale_roi_align` with a single feature map, from which regions of any area are pooled.

    With `by_position`, the map has (C * height * width) channels, and bin (p, q) of the result's channel c is
    that of the map's channel (c * height + p) * width + q: torchvision's `ps_roi_align`, which is `aligned`.

    >>> from topi_ext.roi_align import reference
    >>> data, rois = np.arange(16, dtype="float32").reshape(1, 1, 4, 4), np.float32([[0, 0, 0, 4, 4]])
    >>> options = {"pooled_size": 2, "spatial_scale": 1.0, "sampling_ratio": 2, "aligned": True}
    >>> print(reference.roi_align(data, rois, **options)[0, 0])
    [[ 2.5  4.5]
     [10.5 12.5]]
    """
    return _call(
        [data],
        rois,
        pooled_size=pooled_size,
        scales=[spatial_scale],
        sampling_ratio=sampling_ratio,
        by_area=False,
        aligned=aligned,
        layout=layout,
        by_position=by_position,
        feature_scales=[feature_scale],
        out_scale=out_scale,
        out_dtype=out_dtype,
    )


def _call(
    features: Sequence[Expr],
    rois: Expr,
    *,
    pooled_size: int | Sequence[int],
    scales: Sequence[float],
    sampling_ratio: int,
    by_area: bool,
    aligned: bool,
    layout: str,
    feature_scales: Sequence[float] | None,
    out_scale: float,
    out_dtype: str,
    by_position: bool = False,
    canonical_size: float = 224,
    canonical_level: int = 4,
    min_level: int = 2,
    eps: float = 1e-6,
    eps_in_log2: bool = False,
) -> Expr:
    features = list(features)
    if layout not in CHANNEL_AXIS:
        raise ValueError(f"roi_align: the layout must be NCHW or NHWC, not {layout!r}")
    pooled = (pooled_size, pooled_size) if isinstance(pooled_size, int) else tuple(pooled_size)
    if len(pooled) != 2 or min(pooled) < 1:
        raise ValueError(f"roi_align: pooled_size must be one or two numbers above 0, not {pooled_size}")
    if not features or len(features) != len(scales):
        raise ValueError(f"roi_align: there must be a scale for each of the {len(features)} feature maps")
    if not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ValueError(f"roi_align: scales must be above 0, not {list(scales)}")
    feature_scales = [1.0] * len(features) if feature_scales is None else list(feature_scales)
    if len(features) != len(feature_scales):
        raise ValueError("roi_align: feature_scales must have a number for each feature map")
    for name, factors in (("feature_scales", feature_scales), ("out_scale", [out_scale])):
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"roi_align: {name} must be finite and above 0, not {factors}")
    if not 0 < canonical_size < math.inf:
        raise ValueError(f"roi_align: canonical_size must be above 0, not {canonical_size}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"roi_align: eps must be at least 0, not {eps}")
    return call(
        NAME,
        [tuple_of([*features, rois])],
        pooled_size=[whole("roi_align: pooled_size", bins) for bins in pooled],
        scales=[float(scale) for scale in scales],
        sampling_ratio=max(whole("roi_align: sampling_ratio", sampling_ratio), 0),
        by_area=int(by_area),
        canonical_size=float(canonical_size),
        canonical_level=whole("roi_align: canonical_level", canonical_level),
        min_level=whole("roi_align: min_level", min_level),
        eps=float(eps),
        eps_in_log2=int(eps_in_log2),
        aligned=int(aligned),
        layout=layout,
        by_position=int(by_position),
        feature_scales=[float(scale) for scale in feature_scales],
        out_scale=float(out_scale),
        out_dtype=out_dtype,
    )


# --- types and shapes


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    fields = types[0].fields if isinstance(types[0], TupleType) else [None]
    if not all(isinstance(field, TensorType) for field in fields):
        return None
    *features, rois = fields
    axis = CHANNEL_AXIS[attrs["layout"]]
    for feature in features:
        if len(feature.shape) != 4:
            _refuse(
                attrs, f"feature maps must have the shape ({', '.join(attrs['layout'])}), not {feature.shape}"
            )
        if feature.dtype not in TYPES:
            _refuse(attrs, f"feature maps must be of type {', '.join(TYPES)}, not {feature.dtype}")
        if 0 in [known(extent) for at, extent in enumerate(feature.shape) if at not in (0, axis)]:
            _refuse(attrs, f"a feature map has no pixels: {feature.shape}")
    if len({feature.dtype for feature in features}) > 1:
        _refuse(attrs, "all feature maps must have the same type")
    channels = {known(feature.shape[axis]) or 0 for feature in features}
    if len(channels) > 1 or 0 in channels:
        _refuse(attrs, "the number of channels must be known, and the same for all feature maps")
    if len({known(feature.shape[0]) for feature in features} - {None}) > 1:
        _refuse(attrs, "all feature maps must have the same batch size")
    if len(rois.shape) != 2 or known(rois.shape[1]) not in (4, 5, None):
        _refuse(attrs, f"rois must have the shape (R, 5) or (R, 4), not {rois.shape}")
    if rois.dtype not in FLOATS:
        _refuse(attrs, f"rois must be of type {' or '.join(FLOATS)}, not {rois.dtype}")
    shape = [rois.shape[0], *attrs["pooled_size"]]
    of_result, rest = divmod(channels.pop(), _channels_of_each(attrs))
    if rest:
        _refuse(attrs, f"the number of channels must be a multiple of {_channels_of_each(attrs)}")
    shape.insert(axis, of_result)
    return TensorType(shape, _out_dtype(features[0].dtype, attrs))


def _out_dtype(dtype: str, attrs: Attrs) -> str:
    """The type of the result for feature maps of a type."""
    if dtype != INT8 and any(float(scale) != 1 for scale in attrs["feature_scales"]):
        _refuse(attrs, f"feature scales are for int8 feature maps, not for {dtype}")
    return checked_out_dtype(
        dtype, str(attrs["out_dtype"]), TYPES, ("feature maps", "need"), partial(_refuse, attrs)
    )


def _channels_of_each(attrs: Attrs) -> int:
    """The channels of a map for each of the result."""
    return math.prod(map(int, attrs["pooled_size"])) if attrs["by_position"] else 1


def _refuse(attrs: Attrs, reason: str) -> NoReturn:
    """By the name of the function that was called, of the two that share the operator."""
    _register.refuse(NAME if attrs["by_area"] else "topi_ext.roi_align", reason)


@script
@no_type_check
def _shapes(feature, rois, bins, down, across, axis):
    pooled = output_tensor((4,), "int64")
    assert rois[1] == int64(5) or rois[1] == int64(4), (
        "topi_ext.multiscale_roi_align: rois must have the shape (R, 5) or (R, 4)"
    )
    pooled[0] = rois[0]
    pooled[axis] = feature[axis] // int64(bins)
    if axis == 1:
        pooled[2] = int64(down)
        pooled[3] = int64(across)
    else:
        pooled[1] = int64(down)
        pooled[2] = int64(across)
    return pooled


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    axis = CHANNEL_AXIS[attrs["layout"]]
    numbers = _channels_of_each(attrs), *attrs["pooled_size"], axis
    return [_shapes(inputs[0], inputs[-1], *map(convert, numbers))]


# --- kernels


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    scales = [float(scale) for scale in attrs["scales"]]
    formula = {
        "canonical_size": float(attrs["canonical_size"]),
        "canonical_level": int(attrs["canonical_level"]),
        "min_level": int(attrs["min_level"]),
        "eps": float(attrs["eps"]),
        "eps_in_log2": bool(attrs["eps_in_log2"]),
    }
    pooled = kernels.multiscale_roi_align(
        inputs[:-1],
        inputs[-1],
        pooled_size=[int(bins) for bins in attrs["pooled_size"]],
        scales=scales,
        least_areas=least_areas(len(scales), **formula) if attrs["by_area"] else None,
        sampling_ratio=int(attrs["sampling_ratio"]),
        aligned=bool(attrs["aligned"]),
        layout=str(attrs["layout"]),
        by_position=bool(attrs["by_position"]),
        factors=[float(scale) * float(attrs["out_scale"]) for scale in attrs["feature_scales"]],
        out_dtype=_out_dtype(dtype_of(inputs[0]), attrs),
    )
    return [pooled]


_register.register(
    NAME,
    "Pool regions to a grid of bins by their mean, each from one level of a feature pyramid.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
