"""Projective warps, by the kernels of affine ones: only the places of pixels differ."""

from ..warp_affine.cpu import warp_affine

__all__ = ["warp_affine"]
