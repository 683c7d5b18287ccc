"""Compute transposed convolutions as convolutions with a shuffle."""

from __future__ import annotations

from collections.abc import Sequence

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

HALF = {"float16", "bfloat16"}


class OfConv2dTranspose(Rule):
    """Replace nn.conv2d_transpose with `topi_ext.conv2d_nhwc` and depth to space.

    Why legal: with a stride of s, the pixel s * q + r of the result, before it is cut, is the sum of
    `data[q - t] * weight[s * t + r]` over all t. So for each r there is a convolution, and all of them
    together are one of s * s times as many filters, which are 0 where the kernel of an r has no tap. The
    operator puts their results to their places in the block. Where kernels do not overlap, it is a 1x1
    convolution. Around an infinite pixel these zeros may make the result NaN.
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
        types, taken = {dtype_of(match.data), dtype_of(match.weight)}, set() if self.to_be else HALF
        if dtype_of(match.root) != "float32" or not types <= {"float32", *taken}:
            return Refusal("the types are not all float32")
        if self.to_be and not holds(self.to_be, weight):
            return Refusal(f"the weights are out of the range of {self.to_be}")
        strides = [int(step) for step in attrs.strides]
        if strides != strides[:1] * 2 or {*map(int, attrs.dilation)} != {1}:
            return Refusal("the strides of height and width differ, or it is dilated")
        if int(attrs.groups) != 1 or str(attrs.out_layout) != "NCHW":
            return Refusal("it is grouped, or the result is in another layout")
        is_whole = [*weight.shape[2:]] == strides and not any(
            map(int, (*attrs.padding, *attrs.output_padding))
        )
        if None in data[2:] and not is_whole:
            return Refusal(
                "the result is cut, or the kernel not as large as the strides, and the size dynamic"
            )
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        weight, block = match.graph.constant(match.weight), int(match.root.attrs.strides[0])
        taps = _taps(match, weight.shape[2:])
        pixels = relax.op.permute_dims(match.data, [0, 2, 3, 1])
        if dtype_of(match.data) != "float32":
            pixels = relax.op.astype(pixels, "float32")
        filters = relax.const(_filters(weight.astype("float32"), taps, block), "float32")
        padding = tuple(each - 1 for each in taps) * 2
        result = conv2d_nhwc(pixels, filters, padding=padding, block_size=block)
        data, after = extents_of(match.data), extents_of(match.root)
        if data is not None and after is not None and None not in (*data[2:], *after[2:]):
            whole = [block * (int(size or 0) + each - 1) for size, each in zip(data[2:], taps)]
            if whole != list(after[2:]):
                begin = [int(each) for each in match.root.attrs.padding[:2]]
                end = [first + int(size or 0) for first, size in zip(begin, after[2:])]
                result = relax.op.strided_slice(result, [1, 2], begin, end)
        return relax.op.permute_dims(result, [0, 3, 1, 2])


def _taps(match: Match, kernel: Sequence[int]) -> list[int]:
    """How many pixels there are along each axis in the sum for one; enough for rows that are added behind."""
    attrs = match.root.attrs
    added = [int(extra) - int(cut) for extra, cut in zip(attrs.output_padding, attrs.padding[2:])]
    sizes = [max(size, size + more) for size, more in zip(kernel, added)]
    return [-(-size // int(step)) for size, step in zip(sizes, attrs.strides)]


def _filters(weight: np.ndarray, taps: Sequence[int], block: int) -> np.ndarray:
    """Those of each place in a block after those of another, in OHWI."""
    channels, filters, height, width = weight.shape
    rows, columns = taps
    behind = [(0, rows * block - height), (0, columns * block - width)]
    split = np.pad(weight, [(0, 0), (0, 0), *behind]).reshape(channels, filters, rows, block, columns, block)
    placed = split.transpose(3, 5, 1, 2, 4, 0)[:, :, :, ::-1, ::-1]
    return np.ascontiguousarray(placed).reshape(-1, rows, columns, channels)


def UpsampleByShuffle(
    to_be: str | None = None, target: tvm.target.Target | None = None
) -> tvm.transform.Pass:
    """Compute transposed convolutions as others: TVM has no schedule for them on LLVM.

    It comes before `ConvertToNHWC`, which moves the transposes. On CUDA, the operator has no kernel for
    float32, only for half precision, to which `InMixedPrecision` is `to_be` converting it.
    Without a target, all shapes must be known.
    """
    return rule_pass("UpsampleByShuffle", OfConv2dTranspose(to_be, target))
