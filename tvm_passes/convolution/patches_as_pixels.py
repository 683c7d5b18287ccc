"""Compute a convolution of patches of an image, which do not overlap, as one of pixels."""

from __future__ import annotations

import numpy as np

from topi_ext.conv2d_nhwc.op import problem_of
from topi_ext.conv2d_nhwc.problem import Problem

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.convolution import as_constant
from ..analysis.half_precision import HALF
from ..analysis.targets import has_tensor_cores, target_or_current
from ..engine.expressions import constant, known_shape, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass, for_target
from .fused_call import FusedCall

MULTIPLIED = 8  # channels, that tensor cores multiply at once


def is_better(problem: Problem, target: tvm.target.Target | None) -> bool:
    """Whether a target computes patches faster as pixels: where tensor cores would add channels of zeros."""
    if problem.channels >= MULTIPLIED:
        return False
    return problem.dtype in HALF and has_tensor_cores(target, problem.dtype)


def channels_of_patch(problem: Problem) -> int:
    """Of each of its pixels: as many as there are, and of zeros until tensor cores take the whole patch."""
    rows, columns = problem.kernel
    more = (
        count for count in range(problem.channels, MULTIPLIED + 1) if rows * columns * count % MULTIPLIED == 0
    )
    return next(more)


class OfPatches(Rule):
    """Replace `conv2d_nhwc(x, w)` whose stride is its kernel by one of 1x1 over patches of x.

    Why legal: each pixel that is read is of one patch, which the windows divide the image into from its first
    pixel on. With the pixels of a patch side by side as its channels, and those of w likewise, the sums have
    the same terms. Channels that are added are zeros in x and in w.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        attrs, (data, weight) = match.root.attrs, map(static_shape, match.root.args[:2])
        strides = tuple(map(int, attrs["strides"]))
        if data is None or weight is None or int(attrs["groups"]) > 1:
            return False
        return max(strides) > 1 and tuple(weight[1:3]) == strides

    def plan(self, match: Match) -> FusedCall | Answer | Refusal:
        problem = problem_of([argument.checked_type for argument in match.root.args], match.root.attrs)
        if not is_better(problem, self.target):
            return NO_MATCH
        if any(problem.padding):
            return Refusal("the image is padded: its patches do not begin at its first pixel")
        if max(problem.dilation) > 1:
            return Refusal("the kernel is dilated: its taps are no patch")
        call = FusedCall(match.root)
        weight = constant(call.weight)
        if weight is None:
            return Refusal("the weight is not constant")
        zeros = channels_of_patch(problem) - problem.channels
        patches = np.pad(weight, [(0, 0)] * 3 + [(0, zeros)]).reshape(problem.filters, 1, 1, -1)
        call.weight = as_constant(patches, call.weight.data.dtype)
        call.strides = 1, 1
        return call

    def rewrite(self, match: Match, plan: FusedCall) -> relay.Expr:
        shape = *known_shape(match.root.args[1])[1:3], plan.weight.data.shape[3]
        images = match.graph.notes.setdefault(OfPatches, {})  # of which each is one for all that read it
        if (plan.data, shape) not in images:
            images[plan.data, shape] = _patches_of(plan.data, *shape)
        plan.data = images[plan.data, shape]
        return plan.call()


class PatchesAsPixels(RulePass):
    """Compute the first convolution of a vision transformer over the patches of its image, for tensor cores.

    These multiply 8 channels at once, and an image has three: of 8 products, 5 were of zeros. The patches are
    written by the kernel that casts or transposes the image. `target`: the target to compile for, by default
    the current one; without tensor cores nothing is changed.

    >>> x = relay.var("x", shape=(1, 224, 224, 3), dtype="float16")
    >>> weight = relay.const(np.ones((768, 16, 16, 3), "float16"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight, strides=16))
    >>> conv = tvm_passes.PatchesAsPixels("cuda -arch=sm_90")(mod)["main"].body
    >>> print(conv.args[0].checked_type, conv.args[1].checked_type)
    Tensor[(1, 14, 14, 768), float16] Tensor[(768, 1, 1, 768), float16]
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = (for_target(OfPatches, target),)
        super().__init__()


def _patches_of(image: relay.Expr, rows: int, columns: int, channels: int) -> relay.Expr:
    """(batch, height / rows, width / columns, channels of a patch); pixels behind the last patch are cut."""
    batch, height, width, own = known_shape(image)
    down, across = height // rows, width // columns
    if (height, width) != (down * rows, across * columns):
        image = relay.strided_slice(image, [0, 0], [down * rows, across * columns], [1, 1], axes=[1, 2])
    if zeros := channels // (rows * columns) - own:
        image = relay.nn.pad(image, [(0, 0)] * 3 + [(0, zeros)])
    by_row = relay.reshape(image, (batch, down, rows, across, columns, channels // (rows * columns)))
    return relay.reshape(relay.transpose(by_row, (0, 1, 3, 2, 4, 5)), (batch, down, across, channels))
