"""Compute a strided convolution of an image with few channels as one of pairs of pixels."""

from __future__ import annotations

from dataclasses import replace

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

CHANNELS = 4  # of a pixel: two of them are 16 bytes in half precision, which tensor cores take
MIN_COLUMNS = 3  # of the kernel, of those measured


def is_better(problem: Problem, target: tvm.target.Target | None) -> bool:
    """Whether a target should compute a convolution in pairs: as many channels as it multiplies at once.

    To three channels, it adds five of zeros; measured, that takes 1.25 to 2.6 times as long.
    """
    if problem.kernel[1] < MIN_COLUMNS:
        return False
    return problem.dtype in HALF and has_tensor_cores(target, problem.dtype)


def in_pairs(problem: Problem) -> Problem:
    """The convolution of pairs of pixels that computes the same; the width must be even."""
    (height, width), (rows, columns), (top, left, bottom, _) = problem.size, problem.kernel, problem.padding
    pairs, before = -(-width // 2), -(-left // 2)
    columns = -(-(columns + 2 * before - left) // 2)
    return replace(
        problem,
        size=(height, pairs),
        channels=2 * CHANNELS,
        kernel=(rows, columns),
        strides=(problem.strides[0], 1),
        padding=(top, before, bottom, problem.out_size[1] - 1 + columns - before - pairs),
    )


class OfPairs(Rule):
    """Replace `conv2d_nhwc(x, w)` of stride 2 with one of stride 1 over pairs of the columns of x.

    Why legal: in NHWC two neighbouring pixels of an even width are one of twice the channels, without moving
    a byte, and a step of two pixels is one of a pair. Where the first window begins inside of a pair, w moves
    by one tap behind a tap of zeros; so does it end. The channels that are added are zeros in x and in w.
    Around an infinite pixel, the taps of zeros may make the result NaN.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        attrs, shape = match.root.attrs, static_shape(match.root.args[0])
        is_strided = int(attrs["groups"]) == 1 and int(attrs["strides"][1]) == 2
        return is_strided and shape is not None and shape[3] <= CHANNELS

    def plan(self, match: Match) -> FusedCall | Answer | Refusal:
        problem = problem_of([argument.checked_type for argument in match.root.args], match.root.attrs)
        if not is_better(problem, self.target):
            return NO_MATCH
        if problem.size[1] % 2:
            return Refusal(f"the {problem.size[1]} columns of the image are no pairs")
        if problem.dilation[1] != 1:
            return Refusal("the kernel is dilated: its taps are not neighbouring pixels")
        call = FusedCall(match.root)
        weight = constant(call.weight)
        if weight is None:
            return Refusal("the weight is not constant")
        pairs = in_pairs(problem)
        call.weight = as_constant(_of_pairs(weight, problem, pairs), call.weight.data.dtype)
        call.strides, call.padding = pairs.strides, pairs.padding
        return call

    def rewrite(self, match: Match, plan: FusedCall) -> relay.Expr:
        images = match.graph.notes.setdefault(OfPairs, {})  # of which each is one for all that read it
        if plan.data not in images:
            images[plan.data] = _image_of_pairs(plan.data)
        plan.data = images[plan.data]
        return plan.call()


class PixelsInPairs(RulePass):
    """Compute the first convolution of a network, of stride 2, over pairs of pixels, for tensor cores.

    These multiply 8 channels at once, and an image has three: with a fourth one of zeros, two pixels have 8.
    `FoldPreprocessing`, applied after this, lets `topi_ext.preprocess` write the zeros; otherwise TVM writes
    them in the kernel that casts or transposes the image. `target`: the target to compile for, by default
    the current one; without tensor cores nothing is changed.

    >>> x = relay.var("x", shape=(1, 800, 1344, 3), dtype="float16")
    >>> weight = relay.const(np.ones((64, 7, 7, 3), "float16"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight, strides=2, padding=3))
    >>> conv = tvm_passes.PixelsInPairs("cuda -arch=sm_90")(mod)["main"].body
    >>> print(conv.args[0].checked_type, conv.args[1].checked_type)
    Tensor[(1, 800, 672, 8), float16] Tensor[(64, 7, 4, 8), float16]
    >>> print(conv.attrs["strides"], conv.attrs["padding"])
    [2, 1] [3, 2, 3, 1]
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = (for_target(OfPairs, target),)
        super().__init__()


def _image_of_pairs(image: relay.Expr) -> relay.Expr:
    batch, height, width, channels = known_shape(image)
    if channels < CHANNELS:
        image = relay.nn.pad(image, [(0, 0)] * 3 + [(0, CHANNELS - channels)])
    return relay.reshape(image, (batch, height, width // 2, 2 * CHANNELS))


def _of_pairs(weight: np.ndarray, problem: Problem, pairs: Problem) -> np.ndarray:
    """The weights of the convolution of pairs."""
    filters, rows, columns, channels = weight.shape
    first, taps = 2 * pairs.padding[1] - problem.padding[1], 2 * pairs.kernel[1]
    more = np.zeros((filters, rows, taps, CHANNELS), weight.dtype)
    more[:, :, first : first + columns, :channels] = weight
    return more.reshape(filters, *pairs.kernel, pairs.channels)
