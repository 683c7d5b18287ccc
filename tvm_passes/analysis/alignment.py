"""Whether a convolution is faster with more filters than it has, in either TVM."""

from __future__ import annotations

from dataclasses import replace

from topi_ext.conv2d_nhwc import choose_kernel, cudnn
from topi_ext.conv2d_nhwc.problem import Problem

import tvm

from ..engine.contract import Refusal

MAX_WASTE = 0.25  # of the filters that are computed


def aligned_filters(problem: Problem, target: tvm.target.Target) -> int | None:
    """How many filters let cuDNN compute a convolution better than this project's own kernel, or None."""
    if problem.groups > 1:
        return None  # cuDNN does not get it
    alignment = cudnn.alignment(problem.dtype)
    aligned = -(-problem.filters // alignment) * alignment
    wider = replace(problem, filters=aligned, residual=None, block=1)
    is_wasteful = aligned - problem.filters > MAX_WASTE * aligned
    return None if is_wasteful or not choose_kernel.is_cudnn_better(wider, target) else aligned


def why_no_more_filters(problem: Problem) -> Refusal | None:
    """Why filters of zeros cannot be added to a convolution and cut off from its result, or None."""
    if problem.block > 1:
        return Refusal("the filters are shuffled into pixels")
    if problem.residual:
        return Refusal("a residual with as many channels is added")
    return None
