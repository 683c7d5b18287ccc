"""Convolution of NHWC data that reads and writes some of the channels of wider tensors.

`conv2d_nhwc_in_place` builds the Relay expression; `reference.conv2d_nhwc_in_place` computes it in NumPy.
"""

from .op import conv2d_nhwc_in_place

__all__ = ["conv2d_nhwc_in_place"]
