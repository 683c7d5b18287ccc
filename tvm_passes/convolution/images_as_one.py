"""Compute convolutions as large as their images, such as dense layers, as a matrix product."""

from __future__ import annotations

import math

from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.convolution import as_constant
from ..engine.expressions import constant, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass
from .fused_call import FusedCall
from .reshape_back import ReshapeBack


class OfWholeImages(Rule):
    """Turn each image that a kernel covers entirely into a pixel of one image, with all its channels.

    Why legal: in NHWC the bytes are the same, and for a 1x1 convolution it does not matter which pixels
    are neighbours. A kernel's tiles never span images: with a thousand images of one pixel, each tile
    would have one pixel.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)

    def plan(self, match: Match) -> FusedCall | Answer:
        call = FusedCall(match.root)
        data, weight = static_shape(call.data), constant(call.weight)
        if data is None or weight is None or call.block_size > 1 or call.groups > 1:
            return NO_MATCH
        covers = weight.shape[1:3] == data[1:3] and not any(call.padding)
        if not covers or set(call.dilation) != {1} or (data[0] == 1 and data[1:3] == (1, 1)):
            return NO_MATCH
        (count, *one), filters = data, len(weight)
        rows = max(each for each in range(1, math.isqrt(count) + 1) if count % each == 0)
        image, length = (1, rows, count // rows), math.prod(one)
        call.data = relay.reshape(call.data, (*image, length))
        if call.residual is not None:
            call.residual = relay.reshape(call.residual, (*image, filters))
        call.weight = as_constant(weight.reshape(filters, 1, 1, length), call.weight.data.dtype)
        call.strides = 1, 1
        return call

    def rewrite(self, match: Match, plan: FusedCall) -> relay.Expr:
        return relay.reshape(plan.call(), match.root.checked_type.shape)


class ImagesAsOne(RulePass):
    """Merge images that a convolution covers entirely into one, and drop reshapes between such ones.

    >>> x, weight = relay.var("x", shape=(100, 7, 7, 16)), relay.const(np.ones((32, 7, 7, 16), "float32"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight))
    >>> print(tvm_passes.as_text(tvm_passes.ImagesAsOne()(mod)))
    def @main(%x: Tensor[(100, 7, 7, 16), float32]) -> Tensor[(100, 1, 1, 32), float32] {
      %0 = reshape(%x, newshape=[1, 10, 10, 784]);
      %1 = topi_ext.conv2d_nhwc(%0, const[(32, 1, 1, 784), float32], 0f, 0f, 0f, 0f,
          activation="none", activation_high=0f, activation_low=0f, block_size=1, dilation=[1, 1],
          final_activation="none", final_activation_high=0f, final_activation_low=0f, groups=1,
          has_bias=0, has_residual=0, has_scale=0, has_slope=0, out_dtype="", out_scale=1f,
          padding=[0, 0, 0, 0], residual_scale=1f, strides=[1, 1], weight_id="");
      reshape(%1, newshape=[100, 1, 1, 32])
    }
    """

    rules = (OfWholeImages, ReshapeBack)
