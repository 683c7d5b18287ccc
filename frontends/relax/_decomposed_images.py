"""Writes operators of torch that pool or resize images by others, as `_decompositions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from ..errors import ImportFailure

aten = torch.ops.aten
Call = Callable[..., Any]


def decompositions() -> dict[Any, Call]:
    """By operator, what writes it by others."""
    return {
        # It takes no stride, which is that of the window, as it is.
        aten.max_pool2d_with_indices.default: _max_pool,
        # torch's own sets the strides of a result in channels_last, by as_strided.
        aten.adaptive_avg_pool2d.default: _adaptive_avg_pool,
        # It ignores the divisor.
        aten.avg_pool2d.default: partial(_avg_pool, aten.avg_pool2d),
        aten.avg_pool3d.default: partial(_avg_pool, aten.avg_pool3d),
        # It samples elsewhere.
        aten.upsample_nearest2d.vec: _upsample_nearest,
        aten.upsample_bicubic2d.vec: _upsample_bicubic,
        aten.upsample_bilinear2d.vec: _upsample_bilinear,
    }


def _max_pool(x: Tensor, size: Sequence[int], stride: Sequence[int] = (), *arguments: Any) -> Any:
    return NotImplemented if stride else aten.max_pool2d_with_indices(x, size, size, *arguments)


def _avg_pool(pool: Call, x: Tensor, size: Sequence[int], *arguments: Any) -> Any:
    if len(arguments) < 5 or arguments[4] is None:
        return NotImplemented
    stride, padding, is_ceil, _, divisor = arguments
    if is_ceil:
        raise ImportFailure("Relax has no equivalent of avg_pool with a divisor_override and ceil_mode")
    return pool(x, size, stride, padding, False, True) * (math.prod(size) / divisor)


def _adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    return x.mean((-2, -1), keepdim=True) if tuple(size) == (1, 1) else aten._adaptive_avg_pool2d(x, size)


def _upsample_nearest(x: Tensor, size: Sequence[int] | None, factors: Sequence[float] | None = None) -> Any:
    """TVM takes the pixel whose centre is nearest, torch the one before: the same at powers of two."""
    if not are_fixed(x.shape, size or ()):
        return of_torch(aten.upsample_nearest2d.vec)(x, size, factors)
    ratios = factors or [extent / before for extent, before in zip(size or (), x.shape[2:])]
    if all(ratio >= 1 and math.frexp(ratio)[0] == 0.5 for ratio in ratios):
        return NotImplemented
    return of_torch(aten.upsample_nearest2d.vec)(x, size, factors)


def _upsample_bilinear(
    x: Tensor, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None = None
) -> Any:
    """TVM's factors are those of the extents, torch's those that it is given.

    TVM takes places in float32. Bytes have a converter of their own.
    """
    if x.dtype == torch.uint8:
        return NotImplemented
    if not are_fixed(x.shape, size or ()):
        return _bilinear(x, size, align_corners, factors)
    extents = [factor * before for factor, before in zip(factors or (), x.shape[2:])]
    after = [*(extents if factors else size or ())]
    if after == [*x.shape[2:]]:
        return x.clone()
    is_same = align_corners or all(extent == int(extent) for extent in extents)
    is_single = align_corners and min(after) < 2  # pixel, of which TVM divides by 0
    if is_same and not is_single and x.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return NotImplemented
    return _bilinear(x, size, align_corners, factors)


def _upsample_bicubic(x: Tensor, *arguments: Any) -> Any:
    """Bytes have a converter of their own: torch's decomposition rounds them otherwise than torch."""
    return NotImplemented if x.dtype == torch.uint8 else of_torch(aten.upsample_bicubic2d.vec)(x, *arguments)


def _bilinear(x: Tensor, *arguments: Any) -> Tensor:
    """Its positions are in float32 where pixels have fewer bits."""
    exact = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    return of_torch(aten.upsample_bilinear2d.vec)(exact, *arguments).to(x.dtype)


def are_fixed(*sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for each in sizes for size in each)


def of_torch(operator: Any) -> Call:
    return get_decompositions([operator])[operator]
