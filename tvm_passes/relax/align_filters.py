"""Give convolutions as many filters as cuDNN needs, where its kernels are better."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.op import problem_of
from topi_ext.cudnn import session

import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst
from tvm.relax.dpl import is_op

from ..analysis.alignment import aligned_filters, why_no_more_filters
from ..analysis.targets import is_for_gpu
from ..convolution.fused_call import FusedCall
from ..engine.contract import NO_MATCH, Answer, Match, Refusal, Rule
from .graph import dtype_of, known_shape, op_name, shape_of
from .rule_pass import rule_pass
from .take_in import CONVOLUTION


class _Type(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Aligned(NamedTuple):
    call: FusedCall
    filters: int  # before


class WithMoreFilters(Rule):
    """Replace `conv2d_nhwc(x, w)` with the first filters of `conv2d_nhwc(x, w and filters of zeros)`.

    Why legal: each filter has a result of its own, and those of the zeros are cut off.
    """

    pattern = is_op(CONVOLUTION)(varg_default_wildcard=True)

    def __init__(self, target: tvm.target.Target) -> None:
        self.target = target

    def where(self, match: Match) -> bool:
        if any(shape_of(each) is None for each in match.root.args):
            return False
        return bool(known_shape(match.root.args[1])[0] % cudnn.alignment(dtype_of(match.root)))

    def plan(self, match: Match) -> Aligned | Answer | Refusal:
        types = [_Type(known_shape(each), dtype_of(each)) for each in match.root.args]
        problem = problem_of(types, match.root.attrs)
        aligned = aligned_filters(problem, self.target)
        if aligned is None:
            return NO_MATCH
        refusal = why_no_more_filters(problem)
        if refusal is not None:
            return refusal
        if any(op_name(user) == CONVOLUTION for user in match.graph.users(match.root)):
            return Refusal("another convolution reads the result, which would be copied for it")
        call = FusedCall(match.root)
        for name, given in call.by_filter().items():
            value = match.graph.value(given)
            if not isinstance(value, GenericConst):
                return Refusal(f"the {name} is not constant")
            array = value.value.numpy()
            more = np.pad(array, [(0, aligned - problem.filters)] + [(0, 0)] * (array.ndim - 1))
            setattr(call, name, relax.const(more, dtype_of(given)))
        return Aligned(call, problem.filters)

    def rewrite(self, match: Match, plan: Aligned) -> Expr:
        return relax.op.strided_slice(plan.call.call(), axes=[3], begin=[0], end=[plan.filters])


def AlignFilters(target: tvm.target.Target) -> tvm.transform.Pass:
    """Add filters of zeros to convolutions that cuDNN then computes faster than this project's own kernel.

    cuDNN's kernels for tensor cores take multiples of eight filters. Without cuDNN nothing is changed.
    """
    has_cudnn = is_for_gpu(target) and session.LIBRARY in target.attrs.get("libs", ())
    return rule_pass("AlignFilters", *([WithMoreFilters(target)] if has_cudnn else []))
