"""Filters of zeros for convolutions of cuDNN, whose kernels take multiples of some number; in either TVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.problem import Problem
from topi_ext.cudnn import session

import tvm

from ..analysis.alignment import MAX_WASTE
from ..engine.contract import NO_MATCH, Answer, Expr, Refusal
from .fused_call import PER_FILTER, FusedCall


class WithZeros(NamedTuple):
    call: FusedCall
    filters: int  # before


def has_cudnn(target: tvm.target.Target) -> bool:
    return target.kind.name == "cuda" and session.LIBRARY in target.attrs.get("libs", ())


def with_more_filters(
    call: FusedCall,
    problem: Problem,
    target: tvm.target.Target,
    feeds_convolution: bool,
    padded: Callable[[Expr, int], Expr | None],
) -> WithZeros | Answer | Refusal:
    """A call of as many filters as cuDNN takes, where it is then faster than this project's own kernel.

    `padded` adds so many zeros behind a constant of the call, along its first axis; None of what is none.
    """
    if problem.groups > 1:
        return NO_MATCH  # cuDNN does not get it
    alignment = cudnn.alignment(problem.dtype)
    filters, aligned = problem.filters, -(-problem.filters // alignment) * alignment
    wider = replace(problem, filters=aligned, residual=None, block=1)
    if aligned - filters > MAX_WASTE * aligned or not cudnn.is_better(wider, target):
        return NO_MATCH
    if problem.block > 1:
        return Refusal("the filters are shuffled into pixels")
    if problem.residual:
        return Refusal("a residual with as many channels is added")
    if feeds_convolution:
        return Refusal("another convolution reads the result, which would be copied for it")
    for name in PER_FILTER:
        given = getattr(call, name)
        if given is None:
            continue
        more = padded(given, aligned - filters)
        if more is None:
            return Refusal(f"the {name} is not constant")
        setattr(call, name, more)
    return WithZeros(call, filters)


def with_zeros(array: np.ndarray, count: int) -> np.ndarray:
    """The array with so many zeros behind it along the first axis."""
    return np.pad(array, [(0, count)] + [(0, 0)] * (array.ndim - 1))
