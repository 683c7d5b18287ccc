"""Convolution of NHWC data on tensor cores, with bias, activation, residual and depth-to-space in one kernel.

`conv2d_nhwc` builds the Relay expression; `reference.conv2d_nhwc` says in NumPy what it answers.
"""

from .op import conv2d_nhwc

__all__ = ["conv2d_nhwc"]
