"""Attention: the sum of values, weighted by the softmax of the products of queries and keys.

`attention` builds the Relay expression; `reference` says in NumPy what it answers.
"""

from ..conv2d_nhwc import tensor_core  # noqa: F401  it hooks into the compilation of CUDA code
from .op import attention

__all__ = ["attention"]
