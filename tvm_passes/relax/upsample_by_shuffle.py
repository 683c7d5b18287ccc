"""Compute transposed convolutions whose results do not overlap as convolutions of 1x1."""

from __future__ import annotations

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.half_precision import holds
from ..engine.contract import LEGAL, Answer, Match, Refusal, Rule
from .graph import dtype_of, extents_of
from .rule_pass import rule_pass
from .take_in import why_no_kernel_of


class OfConv2dTranspose(Rule):
    """Replace nn.conv2d_transpose, as large as its strides, with `topi_ext.conv2d_nhwc` and depth to space.

    Why legal: each pixel becomes a block of pixels, of which each has weights of its own. They are filters
    here, whose results the operator puts to their places in the block.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("relax.nn.conv2d_transpose")(data, weight)

    def __init__(self, to_be: str | None = None, target: tvm.target.Target | None = None) -> None:
        self.to_be, self.target = to_be, target

    def where(self, match: Match) -> bool:
        attrs = match.root.attrs
        return (str(attrs.data_layout), str(attrs.kernel_layout)) == ("NCHW", "IOHW")

    def plan(self, match: Match) -> Answer | Refusal:
        data, weight, attrs = extents_of(match.data), match.graph.constant(match.weight), match.root.attrs
        if data is None or weight is None:
            return Refusal("the rank is dynamic, or the weights are not constant")
        refusal = why_no_kernel_of((data[0], *data[2:]), self.to_be or "float32", self.target)
        if refusal is not None:
            return refusal
        if 0 in (*data, *weight.shape):
            return Refusal("a tensor is empty")
        if {dtype_of(match.data), dtype_of(match.weight), dtype_of(match.root)} != {"float32"}:
            return Refusal("the types are not all float32")
        if self.to_be and not holds(self.to_be, weight):
            return Refusal(f"the weights are out of the range of {self.to_be}")
        height, width = weight.shape[2:]
        if not height == width > 1 or [int(step) for step in attrs.strides] != [height, width]:
            return Refusal("the kernel is not a square as large as the strides")
        if any(map(int, (*attrs.padding, *attrs.output_padding))) or {*map(int, attrs.dilation)} != {1}:
            return Refusal("it is padded or dilated")
        if int(attrs.groups) != 1 or str(attrs.out_layout) != "NCHW":
            return Refusal("it is grouped, or the result is in another layout")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        weight = match.graph.constant(match.weight)
        channels, block = weight.shape[0], weight.shape[2]
        filters = np.ascontiguousarray(weight.transpose(2, 3, 1, 0)).reshape(-1, 1, 1, channels)
        pixels = relax.op.permute_dims(match.data, [0, 2, 3, 1])
        result = conv2d_nhwc(pixels, relax.const(filters, "float32"), block_size=block)
        return relax.op.permute_dims(result, [0, 3, 1, 2])


def UpsampleByShuffle(
    to_be: str | None = None, target: tvm.target.Target | None = None
) -> tvm.transform.Pass:
    """Compute transposed convolutions that do not overlap as others: TVM has no schedule for them on LLVM.

    It comes before `ConvertToNHWC`, which moves the transposes. On CUDA, the operator has no kernel for
    float32, only for half precision, to which `InMixedPrecision` is `to_be` converting it.
    Without a target, all shapes must be known.
    """
    return rule_pass("UpsampleByShuffle", OfConv2dTranspose(to_be, target))
