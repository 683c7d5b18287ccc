"""Give convolutions as many filters as cuDNN needs, where its kernels are better."""

from __future__ import annotations

from typing import NamedTuple

from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.op import problem_of

import tvm
from tvm import relax
from tvm.ir import Expr, GenericConst
from tvm.relax.dpl import is_op

from ..convolution.fused_call import FusedCall
from ..convolution.more_filters import WithZeros, has_cudnn, with_more_filters, with_zeros
from ..engine.contract import Answer, Match, Refusal, Rule
from .fuse_conv2d_nhwc import CONVOLUTION
from .graph import dtype_of, known_shape, op_name, shape_of
from .rule_pass import rule_pass


class _Type(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


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

    def plan(self, match: Match) -> WithZeros | Answer | Refusal:
        types = [_Type(known_shape(each), dtype_of(each)) for each in match.root.args]
        feeds = any(op_name(user) == CONVOLUTION for user in match.graph.users(match.root))

        def padded(given: Expr, count: int) -> Expr | None:
            value = match.graph.value(given)
            if not isinstance(value, GenericConst):
                return None
            return relax.const(with_zeros(value.value.numpy(), count), dtype_of(given))

        problem = problem_of(types, match.root.attrs)
        return with_more_filters(FusedCall(match.root), problem, self.target, feeds, padded)

    def rewrite(self, match: Match, plan: WithZeros) -> Expr:
        return relax.op.strided_slice(plan.call.call(), axes=[3], begin=[0], end=[plan.filters])


def AlignFilters(target: tvm.target.Target) -> tvm.transform.Pass:
    """Add filters of zeros to convolutions that cuDNN then computes faster than this project's own kernel.

    cuDNN's kernels for tensor cores take multiples of eight filters. Without cuDNN nothing is changed.
    """
    return rule_pass("AlignFilters", *([WithMoreFilters(target)] if has_cudnn(target) else []))
