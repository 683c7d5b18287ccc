"""Projective warps, by the kernels of affine ones: only the places of pixels differ."""

from ..warp_affine.cuda import schedule, warp_affine

__all__ = ["schedule", "warp_affine"]
