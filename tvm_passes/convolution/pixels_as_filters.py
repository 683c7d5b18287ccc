"""Compute neighbouring pixels as further filters of a convolution that has too few for tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc.choose_plan import plan_for
from topi_ext.conv2d_nhwc.cuda import supported_arch
from topi_ext.conv2d_nhwc.op import problem_of
from topi_ext.conv2d_nhwc.problem import Problem

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.convolution import as_constant
from ..analysis.targets import is_for_gpu, target_or_current
from ..engine.expressions import constant, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass, for_target
from .fused_call import FusedCall

MAX_FILTERS, MIN_CHANNELS, MIN_KERNEL, MIN_PIXELS = 12, 64, 3, 2**16  # as measured on an H100


def side_of_a_square(problem: Problem, target: tvm.target.Target) -> int:
    """The side s of the squares of s x s pixels that a target should compute at once; 1 for no squares.

    Tensor cores take as long for few filters as for 16 to 32. A square multiplies the filters by s², and the
    taps by ((k + s - 1) / k)², which is much for small kernels: s = 2 is 1.8 times as many for k = 3. Few
    channels are bound by memory. Few pixels would leave multiprocessors idle, and what a strided tile sees
    must fit into shared memory: loading the pixels again for each tap costs what the squares save.
    """
    arch = supported_arch(problem.dtype, target) if is_for_gpu(target) else None
    is_narrow = problem.filters <= MAX_FILTERS and min(problem.kernel) >= MIN_KERNEL
    is_narrow &= problem.channels >= MIN_CHANNELS
    pixels = problem.batch * problem.out_size[0] * problem.out_size[1]
    if arch is None or not is_narrow or pixels < MIN_PIXELS:
        return 1
    kernel = tuple(extent + 1 for extent in problem.kernel)
    squares = replace(problem, filters=4 * problem.filters, kernel=kernel, strides=(2, 2))
    return 1 if plan_for(squares, arch).by_taps and not plan_for(problem, arch).by_taps else 2


class Squares(NamedTuple):
    call: FusedCall
    side: int
    constants: dict[str, np.ndarray]


class OfSquares(Rule):
    """Replace `conv2d_nhwc(x, w)` with a strided one that has filters for s x s pixels, and shuffles them.

    Why legal: the pixel (s * y + p, s * x + q) is a sum over the window that begins p rows and q columns
    behind that of (s * y, s * x). In a window of s - 1 more rows and columns, its filter is w shifted by
    (p, q), between zeros; around an infinite pixel these may make the result NaN. Depth to space brings the
    pixels to their places. If the convolution does that already, a single shuffle by the product of both
    blocks does both, of filters in another order.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        attrs = match.root.attrs
        is_plain = int(attrs["groups"]) == 1 and {int(each) for each in attrs["strides"]} == {1}
        return self.target is not None and is_plain and static_shape(match.root) is not None

    def plan(self, match: Match) -> Squares | Answer | Refusal:
        problem = problem_of([argument.checked_type for argument in match.root.args], match.root.attrs)
        side = side_of_a_square(problem, self.target)
        if side == 1:
            return NO_MATCH
        if any(extent % side for extent in problem.out_size):
            size = "x".join(map(str, problem.out_size))
            return Refusal(f"the {size} pixels of the result are no squares of {side}x{side}")
        if problem.dilation != (1, 1):
            return Refusal("the kernel is dilated: its windows are not shifted by whole taps")
        if problem.residual:
            return Refusal("a residual is added, which depth to space does not allow")
        call, constants = FusedCall(match.root), {}
        for name, given in call.by_filter().items():
            value = constant(given)
            if value is None:
                return Refusal(f"the {name} is not constant")
            constants[name] = value
        return Squares(call, side, constants)

    def rewrite(self, match: Match, plan: Squares) -> relay.Expr:
        call, side, constants = plan
        for name, value in constants.items():
            of_squares = _shifted if name == "weight" else _repeated
            array = of_squares(value, side, call.block_size)
            setattr(call, name, as_constant(array, getattr(call, name).data.dtype))
        call.strides = side, side
        call.block_size *= side
        return call.call()


class PixelsAsFilters(RulePass):
    """Compute squares of neighbouring pixels at once where there are too few filters for tensor cores.

    The last layer of a network that enlarges images has three filters, or a few for each pixel, and millions
    of pixels. `target`: the target to compile for, by default the current one; without tensor cores nothing
    is changed.

    >>> x = relay.var("x", shape=(1, 256, 256, 64), dtype="float16")
    >>> weight = relay.const(np.ones((3, 5, 5, 64), "float16"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight, padding=2))
    >>> mod = tvm_passes.PixelsAsFilters("cuda -arch=sm_90")(mod)
    >>> conv = mod["main"].body
    >>> print(conv.args[1].checked_type, conv.attrs["strides"], conv.attrs["block_size"])
    Tensor[(12, 6, 6, 64), float16] [2, 2] 2
    >>> print(mod["main"].checked_type.ret_type)
    Tensor[(1, 256, 256, 3), float16]
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = (for_target(OfSquares, target),)
        super().__init__()


def _shifted(weight: np.ndarray, side: int, block: int) -> np.ndarray:
    """The filters of each pixel of a square, in the order of one shuffle by `side * block`."""
    filters, rows, columns, channels = weight.shape
    window = rows + side - 1, columns + side - 1
    squares = np.zeros((side, block, side, block, filters // block**2, *window, channels), weight.dtype)
    by_pixel = weight.reshape(block, block, -1, rows, columns, channels)
    for p, q in np.ndindex(side, side):
        squares[p, :, q, :, :, p : p + rows, q : q + columns] = by_pixel
    return squares.reshape(-1, *window, channels)


def _repeated(vector: np.ndarray, side: int, block: int) -> np.ndarray:
    """The numbers of these filters, from one for each filter before."""
    by_pixel = vector.reshape(1, block, 1, block, -1)
    return np.broadcast_to(by_pixel, (side, block, side, *by_pixel.shape[3:])).reshape(-1)
