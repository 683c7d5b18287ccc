"""The reference of `multiscale_roi_align` in NumPy: region by region, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .levels import level_of

MAX_SAMPLES = 2**20  # of a side of a bin


def multiscale_roi_align(
    features: Sequence[np.ndarray],
    rois: np.ndarray,
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
) -> np.ndarray:
    """The arguments and the result of `topi_ext.multiscale_roi_align`, as arrays."""
    formula: dict[str, Any] = {
        "canonical_size": canonical_size,
        "canonical_level": canonical_level,
        "min_level": min_level,
        "eps": eps,
        "eps_in_log2": eps_in_log2,
    }

    def level_of_area(area: float) -> int | None:
        return int(level_of(area, len(features), **formula)) if area >= 0 else None

    options: dict[str, Any] = {
        "pooled_size": pooled_size,
        "sampling_ratio": sampling_ratio,
        "aligned": aligned,
        "factors": [scale * out_scale for scale in feature_scales or [1.0] * len(features)],
        "out_dtype": out_dtype,
    }
    return _pool(features, rois, scales, level_of_area, layout=layout, **options)


def roi_align(
    data: np.ndarray,
    rois: np.ndarray,
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
) -> np.ndarray:
    """The arguments and the result of `topi_ext.roi_align`, as arrays."""
    options: dict[str, Any] = {
        "pooled_size": pooled_size,
        "sampling_ratio": sampling_ratio,
        "aligned": aligned,
        "factors": [feature_scale * out_scale],
        "out_dtype": out_dtype,
    }
    pooled = _pool([data], rois, [spatial_scale], lambda _area: 0, layout=layout, **options)
    return _of_position(pooled, layout) if by_position else pooled


def _of_position(pooled: np.ndarray, layout: str) -> np.ndarray:
    """Of the channels of each bin, those that belong to it."""
    bins = np.moveaxis(pooled, 1, 3) if layout == "NCHW" else pooled
    _, down, across, _ = bins.shape
    own = [[bins[:, p, q, p * across + q :: down * across] for q in range(across)] for p in range(down)]
    result = np.stack([np.stack(row, 1) for row in own], 1)
    return np.moveaxis(result, 3, 1) if layout == "NCHW" else result


def _pool(
    features: Sequence[np.ndarray],
    rois: np.ndarray,
    scales: Sequence[float],
    level_of_area: Callable[[float], int | None],
    *,
    pooled_size: int | Sequence[int],
    sampling_ratio: int,
    aligned: bool,
    layout: str,
    factors: Sequence[float],
    out_dtype: str,
) -> np.ndarray:
    if layout == "NCHW":
        features = [np.moveaxis(feature, 1, 3) for feature in features]
    down, across = (pooled_size, pooled_size) if isinstance(pooled_size, int) else pooled_size
    if rois.shape[1] == 4:  # without the index of the image
        rois = np.insert(rois, 0, 0, axis=1)
    result = np.zeros((len(rois), down, across, features[0].shape[-1]), "float32")
    for row, (index, *corners) in enumerate(rois.astype("float32")):
        x1, y1, x2, y2 = np.array(corners)
        with np.errstate(over="ignore", invalid="ignore"):
            level = level_of_area((x2 - x1) * (y2 - y1))
        if level is None or not np.isfinite(corners).all() or not -1 < index < len(features[level]):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            x1, y1, x2, y2 = np.array(corners) * np.float32(scales[level]) - np.float32(0.5 * aligned)
            sides = np.array([y2 - y1, x2 - x1])
        if np.isfinite(sides).all():
            height, width = sides if aligned else np.maximum(sides, 1)
            image = features[level][int(index)].astype("float32")
            rows, row_count = _weights(y1, height, down, sampling_ratio, image.shape[0])
            columns, column_count = _weights(x1, width, across, sampling_ratio, image.shape[1])
            total = np.einsum("ph,qw,hwc->pqc", rows, columns, image, optimize=True)
            result[row] = total / np.maximum(row_count * column_count, 1) * np.float32(factors[level])
    dtype = out_dtype or features[0].dtype
    result = (np.rint(result).clip(-128, 127) if dtype == "int8" else result).astype(dtype)
    return np.moveaxis(result, 3, 1) if layout == "NCHW" else result


def _weights(
    start: float, side: float, bins: int, sampling_ratio: int, length: int
) -> tuple[np.ndarray, int]:
    """The weight of each pixel along a side in each bin, (bins, length), and the samples per bin."""
    bin_side = side / np.float32(bins)
    count = sampling_ratio if sampling_ratio > 0 else int(min(np.ceil(bin_side), MAX_SAMPLES))
    weights = np.zeros((bins, length), "float32")
    for place in range(bins):
        samples = (
            start
            + place * bin_side
            + (np.arange(count, dtype="float32") + np.float32(0.5)) * bin_side / (np.float32(count))
        )
        samples = np.clip(samples[(samples >= -1) & (samples <= length)], 0, length - 1).astype("float32")
        low = samples.astype("int32")
        fraction = samples - low
        np.add.at(weights[place], low, 1 - fraction)
        np.add.at(weights[place], np.minimum(low + 1, length - 1), fraction)
    return weights, count
