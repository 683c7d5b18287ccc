"""Convolve an image before a resize that repeats its pixels, rather than the larger one."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import weights_of
from ..analysis.shuffles import Shuffle
from ..engine.expressions import known_shape, static_shape
from ..engine.rule import Match, Refusal, Rule, RulePass
from .convolve_earlier import cost, moved_convolution, moved_weights, why_not_earlier

# The coordinates and roundings by which a nearest resize to s times the size takes pixel y // s for pixel y:
# an empty rounding rounds down, and half a pixel off, no place is halfway between two pixels.
TO_NEAREST = "round", "round_prefer_floor", "round_prefer_ceil"
REPEATING = {
    "asymmetric": ("", "floor"),
    "half_pixel": TO_NEAREST,
    "pytorch_half_pixel": TO_NEAREST,
    "tf_half_pixel_for_nn": ("", "floor"),
}


class OfRepeatedPixels(Rule):
    """Replace `conv2d(resize2d(x), w)`, a nearest resize by s, with `depth_to_space(conv2d(x, w'))`.

    Why legal: the resized image is the shuffle of s x s copies of x as channels. So each of the s x s pixels
    of a block, which w' computes as separate filters, sees pixels of x with the sums of the weights that w
    has for their copies, and with zeros elsewhere. Zeros padded around the resized image are zeros around x,
    as the result is as large as the image. Around an infinite pixel these zeros may make the result NaN.
    """

    data, weight = wildcard(), wildcard()
    resize = is_op("image.resize2d")(data)
    pattern = is_op("nn.conv2d")(resize, weight)

    def where(self, match: Match) -> bool:
        return str(match.resize.attrs.method) == "nearest_neighbor"

    def plan(self, match: Match) -> tuple[int, np.ndarray] | Refusal:
        """By how much the image is resized, and the weights of the convolution before."""
        conv = match.root
        refusal = why_not_earlier(conv) or _why_not_repeated(match.data, match.resize)
        if refusal:
            return refusal
        layout = str(conv.attrs.data_layout)
        if str(match.resize.attrs.layout) != layout:
            return Refusal("the convolution and the resize are in different layouts")
        if match.used_elsewhere(match.resize):
            return Refusal("the resized image has other users")
        before = known_shape(match.data)
        height, channels = (before[layout.index(axis)] for axis in "HC")
        block = int(match.resize.attrs.size[0]) // height
        weights = _summed_weights(conv, block)
        pixels = int(np.prod(before)) // channels
        resized = pixels * channels * (1 + block**2)  # elements that are read and written
        now = cost(pixels * block**2, weights_of(conv).shape) + resized
        times = cost(pixels, weights.shape) / now
        if times >= 1:
            return Refusal(f"the convolution would be no quicker before: {times:.1f} times as long")
        return block, weights

    def rewrite(self, match: Match, plan: tuple[int, np.ndarray]) -> relay.Expr:
        block, weights = plan
        conv = moved_convolution(match.root, block, match.data, weights)
        return relay.nn.depth_to_space(conv, block, str(match.root.attrs.data_layout), "DCR")


class ConvolveBeforeResize(RulePass):
    """Convolve images before nearest resizes, where that is faster than to convolve the larger ones.

    >>> x, weight = relay.var("x", shape=(1, 16, 64, 64)), relay.const(np.ones((16, 16, 3, 3), "float32"))
    >>> resized = relay.image.resize2d(x, (128, 128), None, "NCHW", "nearest_neighbor", "asymmetric")
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d(resized, weight, padding=1))
    >>> print(tvm_passes.as_text(tvm_passes.ConvolveBeforeResize()(mod)))
    def @main(%x: Tensor[(1, 16, 64, 64), float32]) -> Tensor[(1, 16, 128, 128), float32] {
      %0 = nn.conv2d(%x, const[(64, 16, 3, 3), float32], padding=[1, 1, 1, 1], channels=64,
          kernel_size=[3, 3]);
      nn.depth_to_space(%0, block_size=2)
    }
    """

    rules = (OfRepeatedPixels,)


def _why_not_repeated(data: relay.Expr, resize: relay.Call) -> Refusal | None:
    """Why a nearest resize is not one that repeats each pixel as often down as across; None if it is."""
    attrs, before, after = resize.attrs, static_shape(data), static_shape(resize)
    if before is None or after is None:
        return Refusal("the shape is dynamic")
    if 0 in before:
        return Refusal("the image is empty")
    if data.checked_type.dtype != resize.checked_type.dtype:
        return Refusal("the resize changes the type")
    if "int" in data.checked_type.dtype:
        return Refusal("sums of integer weights may not fit into their type")
    mode, rounding = str(attrs.coordinate_transformation_mode), str(attrs.rounding_method)
    if rounding not in REPEATING.get(mode, ()):
        return Refusal(f"a resize by {mode!r} and {rounding!r} does not repeat each pixel equally often")
    times = {axis: divmod(new, old) for axis, old, new in zip(str(attrs.layout), before, after)}
    if times["H"] != times["W"] or times["H"][1] or times["H"][0] < 2:
        return Refusal("height and width are not the same multiple of what they were")
    return None


def _summed_weights(conv: relay.Call, block: int) -> np.ndarray:
    filters, channels = weights_of(conv).shape[:2]
    copies = np.broadcast_to(np.arange(channels), (block, block, channels))
    return moved_weights(conv, Shuffle(block).deep(filters), copies)
