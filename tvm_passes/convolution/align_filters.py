"""Give convolutions as many filters as cuDNN needs, where its kernels are better."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc import cudnn
from topi_ext.conv2d_nhwc.op import problem_of
from topi_ext.cudnn import session

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.alignment import aligned_filters, why_no_more_filters
from ..analysis.convolution import as_constant, channels_cut
from ..analysis.targets import is_for_gpu, target_or_current
from ..engine.expressions import constant, op_name, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass, for_target
from .fused_call import FusedCall


class Aligned(NamedTuple):
    call: FusedCall
    filters: int  # before


class WithMoreFilters(Rule):
    """Replace `conv2d_nhwc(x, w)` with the first filters of `conv2d_nhwc(x, w and filters of zeros)`.

    Why legal: each filter has a result of its own, and those of the zeros are cut off. TVM computes the cut
    in the kernel that reads the result.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        target = self.target
        if target is None or not is_for_gpu(target) or session.LIBRARY not in target.libs:
            return False
        weight = match.root.args[1].checked_type
        return bool(static_shape(match.root) and int(weight.shape[0]) % cudnn.alignment(weight.dtype))

    def plan(self, match: Match) -> Aligned | Answer | Refusal:
        problem = problem_of([argument.checked_type for argument in match.root.args], match.root.attrs)
        aligned = aligned_filters(problem, self.target)
        if aligned is None:
            return NO_MATCH
        refusal = why_no_more_filters(problem)
        if refusal is not None:
            return refusal
        if any(op_name(user) == "topi_ext.conv2d_nhwc" for user in match.graph.users(match.root)):
            return Refusal("another convolution reads the result, which would be copied for it")
        call = FusedCall(match.root)
        for name, given in call.by_filter().items():
            value = constant(given)
            if value is None:
                return Refusal(f"the {name} is not constant")
            more = np.pad(value, [(0, aligned - problem.filters)] + [(0, 0)] * (value.ndim - 1))
            setattr(call, name, as_constant(more, given.data.dtype))
        return Aligned(call, problem.filters)

    def rewrite(self, match: Match, plan: Aligned) -> relay.Expr:
        return relay.strided_slice(plan.call.call(), [0], [plan.filters], axes=[3])


class CutOnce(Rule):
    """Replace `strided_slice(strided_slice(conv2d_nhwc(...)))` along the filters with one slice.

    Why legal: both take filters one by one, and the second one those that are in the first. Several slices of
    the first one would need it in memory.
    """

    conv = is_op("topi_ext.conv2d_nhwc")(None)
    first = is_op("strided_slice")(conv)
    pattern = is_op("strided_slice")(first)

    def plan(self, match: Match) -> tuple[int, int] | Answer:
        """The first filter, and the one behind the last."""
        outer, inner = channels_cut(match.first), channels_cut(match.root)
        if outer is None or inner is None:
            return NO_MATCH
        return outer[0] + inner[0], outer[0] + inner[1]

    def rewrite(self, match: Match, plan: tuple[int, int]) -> relay.Expr:
        return relay.strided_slice(match.conv, [plan[0]], [plan[1]], axes=[3])


class AlignFilters(RulePass):
    """Add filters of zeros to convolutions that cuDNN then computes faster than this project's own kernel.

    cuDNN's kernels for tensor cores take multiples of eight filters; the layer of a detector that gives the
    scores of 91 classes for 9 anchors has 819. `target`: the target to compile for, by default the current
    one; without cuDNN nothing is changed.

    >>> x = relay.var("x", shape=(1, 100, 168, 256), dtype="float16")
    >>> weight = relay.const(np.ones((60, 3, 3, 256), "float16"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight))
    >>> mod = tvm_passes.AlignFilters("cuda -arch=sm_90 -libs=cudnn-frontend")(mod)
    >>> print(mod["main"].body.args[0].checked_type, mod["main"].checked_type.ret_type)
    Tensor[(1, 98, 166, 64), float16] Tensor[(1, 98, 166, 60), float16]
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = (for_target(WithMoreFilters, target), CutOnce)
        super().__init__()
