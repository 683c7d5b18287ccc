"""Convolution of NHWC data on tensor cores, with bias, activation, residual and depth-to-space in one kernel.

`conv2d_nhwc` builds the expression; `reference.conv2d_nhwc` computes its result in NumPy.
"""

from . import tensor_core  # noqa: F401  it hooks into the compilation of CUDA code
from .op import conv2d_nhwc

__all__ = ["conv2d_nhwc"]
