"""The Relay operator `topi_ext.roi_pool`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, convert, script, te, tir
from .._whole import whole
from .kernel import Options

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.roi_pool"
FLOATS = ("float32", "float16")
ARGUMENTS = {
    "data": "(N, C, H, W), float32 or float16.",
    "rois": "(R, 5): index in the batch, x1, y1, x2, y2 in the image; float32 or float16.",
}


def roi_pool(data: Expr, rois: Expr, *, pooled_size: int | Sequence[int], spatial_scale: float) -> Expr:
    """The maximum of each bin of each region, in whole pixels.

    Parameters
    ----------
    data : Expr
        (N, C, H, W), float32 or float16. N, H and W may be known only at run time.
    rois : Expr
        (R, 5), float32 or float16: index in the batch, x1, y1, x2, y2. R may be known only at run time.
    pooled_size : int or (int, int)
        The numbers of bins in height and width.
    spatial_scale : float
        The factor from coordinates of the image to those of the feature map.

    Returns
    -------
    pooled : Expr
        (R, C, height, width) in bins, of the type of `data`.

    Convention
    ----------
    - As torchvision's `roi_pool`: corners are scaled, and rounded to the nearest pixel, halves away from 0.
      Both belong to the region, which is at least one pixel large. Bins are rounded outwards to whole pixels.
    - A bin without pixels of the map is 0. NaN is never the maximum.
    - The result is 0 for a region with a coordinate that is NaN or infinite, or an index out of range.

    >>> from topi_ext.roi_pool import reference
    >>> data, rois = np.arange(16, dtype="float32").reshape(1, 1, 4, 4), np.float32([[0, 0, 0, 3, 3]])
    >>> print(reference.roi_pool(data, rois, pooled_size=2, spatial_scale=1.0)[0, 0])
    [[ 5.  7.]
     [13. 15.]]
    """
    return _call(data, rois, pooled_size, spatial_scale, by_position=False)


def ps_roi_pool(data: Expr, rois: Expr, *, pooled_size: int | Sequence[int], spatial_scale: float) -> Expr:
    """The mean of each bin of each region, in whole pixels; each bin has channels of its own.

    The arguments are those of `roi_pool`, but `data` has (C * height * width) channels: the channel c of bin
    (p, q) of the result is the mean of channel (c * height + p) * width + q.

    Convention
    ----------
    - As torchvision's `ps_roi_pool`: corners are scaled and rounded as in `roi_pool`, but the last row and
      column do not belong to the region, and those of the map to none.
    - A bin without pixels is 0, and so is the result for regions as in `roi_pool`.

    >>> from topi_ext.roi_pool import reference
    >>> data, rois = np.arange(32, dtype="float32").reshape(1, 2, 4, 4), np.float32([[0, 0, 0, 2, 2]])
    >>> print(reference.ps_roi_pool(data, rois, pooled_size=(1, 2), spatial_scale=1.0)[0, 0])
    [[ 2. 19.]]
    """
    return _call(data, rois, pooled_size, spatial_scale, by_position=True)


def _call(
    data: Expr,
    rois: Expr,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    by_position: bool,
) -> Expr:
    pooled = (pooled_size, pooled_size) if isinstance(pooled_size, int) else tuple(pooled_size)
    if len(pooled) != 2 or min(pooled) < 1:
        raise ValueError(f"roi_pool: pooled_size must be one or two numbers above 0, not {pooled_size}")
    if not (math.isfinite(spatial_scale) and spatial_scale > 0):
        raise ValueError(f"roi_pool: spatial_scale must be above 0, not {spatial_scale}")
    return call(
        NAME,
        [data, rois],
        pooled_size=[whole("roi_pool: pooled_size", bins) for bins in pooled],
        spatial_scale=float(spatial_scale),
        by_position=int(by_position),
    )


def _options(attrs: Attrs) -> Options:
    down, across = map(int, attrs["pooled_size"])
    return Options((down, across), float(attrs["spatial_scale"]), bool(attrs["by_position"]))


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    data, rois = types
    for name, type_ in zip(ARGUMENTS, types):
        if type_.dtype not in FLOATS:
            _refuse(attrs, f"{name} must be of type {' or '.join(FLOATS)}, not {type_.dtype}")
    if len(data.shape) != 4 or not known(data.shape[1]):
        _refuse(
            attrs,
            f"data must have the shape (N, C, H, W) with a C that is known and above 0, not {data.shape}",
        )
    if 0 in map(known, data.shape[2:]):
        _refuse(attrs, f"data has no pixels: {data.shape}")
    if len(rois.shape) != 2 or known(rois.shape[1]) not in (5, None):
        _refuse(attrs, f"rois must have the shape (R, 5), not {rois.shape}")
    options = _options(attrs)
    channels, rest = divmod(int(data.shape[1]), options.channels_of_each)
    if rest:
        _refuse(
            attrs, f"data must have a multiple of {options.channels_of_each} channels, not {data.shape[1]}"
        )
    return TensorType([rois.shape[0], channels, *options.pooled_size], data.dtype)


def _refuse(attrs: Attrs, reason: str) -> NoReturn:
    """By the name of the function that was called, of the two that share the operator."""
    _register.refuse("topi_ext.ps_roi_pool" if attrs["by_position"] else NAME, reason)


@script
@no_type_check
def _shapes(data, rois, bins, down, across):
    result = output_tensor((4,), "int64")
    assert rois[1] == int64(5), "topi_ext.roi_pool: rois must have the shape (R, 5)"
    result[0] = rois[0]
    result[1] = data[1] // int64(bins)
    result[2] = int64(down)
    result[3] = int64(across)
    return result


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    options = _options(attrs)
    return [_shapes(*inputs, *map(convert, (options.channels_of_each, *options.pooled_size)))]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    return [kernels.roi_pool(*inputs, _options(attrs))]


_register.register(
    NAME,
    "Pool regions to a grid of bins, in whole pixels.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
