"""Compute transposed convolutions as convolutions with a shuffle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc
from topi_ext.conv2d_nhwc.op import has_kernel

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
    operator puts their results to their places in the block, or a transpose does where blocks are no squares,
    or filters in groups. Where kernels do not overlap, it is a 1x1 convolution. A dilated kernel is one with
    zeros between. Around an infinite pixel these zeros may make the result NaN.
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
        if str(attrs.out_layout) != "NCHW":
            return Refusal("the result is in another layout")
        channels, of_group = weight.shape[:2]
        groups, filters = int(attrs.groups), math.prod(_blocks(match)) * of_group * int(attrs.groups)
        if groups > 1 and (
            self.target is None
            or not has_kernel(channels, filters, groups, self.to_be or "float32", self.target)
        ):
            return Refusal("the target has no kernel for these groups of filters")
        is_whole = [*_kernel(match).shape[2:]] == _blocks(match) and not any(
            map(int, (*attrs.padding, *attrs.output_padding))
        )
        if None in data[2:] and not is_whole:
            return Refusal(
                "the result is cut, or the kernel not as large as the strides, and the size dynamic"
            )
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        weight, blocks, groups = _kernel(match), _blocks(match), int(match.root.attrs.groups)
        dilation = _dilation(match)
        taps = _taps(match, weight.shape[2:])
        pixels = relax.op.permute_dims(match.data, [0, 2, 3, 1])
        if dtype_of(match.data) != "float32":
            pixels = relax.op.astype(pixels, "float32")
        filters = relax.const(_filters(weight.astype("float32"), taps, blocks, groups), "float32")
        padding = [apart * (each - 1) for apart, each in zip(dilation, taps)] * 2
        extents = [size + each for size, each in zip(match.data.ty.shape.values[2:], padding)]
        if groups == 1 and blocks[0] == blocks[1]:
            result = conv2d_nhwc(pixels, filters, padding=padding, dilation=dilation, block_size=blocks[0])
        else:
            result = conv2d_nhwc(pixels, filters, padding=padding, dilation=dilation, groups=groups)
            images = [match.data.ty.shape.values[0], *extents]
            result = _shuffled(result, images, blocks, (groups, weight.shape[1]))
        after = extents_of(match.root)
        whole = [block * size for block, size in zip(blocks, extents)]
        if after is not None and None not in after[2:] and whole != list(after[2:]):
            begin = [int(each) for each in match.root.attrs.padding[:2]]
            end = [first + int(size or 0) for first, size in zip(begin, after[2:])]
            result = relax.op.strided_slice(result, [1, 2], begin, end)
        return relax.op.permute_dims(result, [0, 3, 1, 2])


def _blocks(match: Match) -> list[int]:
    """Rows and columns of the result for each pixel."""
    return [int(step) for step in match.root.attrs.strides]


def _dilation(match: Match) -> list[int]:
    """Of the convolution that takes its place: where pixels are moved apart, the taps are instead."""
    attrs = match.root.attrs
    stays = _blocks(match) == [1, 1] and not any(map(int, attrs.output_padding))
    return [int(apart) for apart in attrs.dilation] if stays else [1, 1]


def _kernel(match: Match) -> np.ndarray:
    """The weights, with zeros between them where they are dilated and the convolution is not."""
    weight = match.graph.constant(match.weight)
    steps = [int(apart) // kept for apart, kept in zip(match.root.attrs.dilation, _dilation(match))]
    sizes = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], steps)]
    kernel = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
    kernel[:, :, :: steps[0], :: steps[1]] = weight
    return kernel


def _taps(match: Match, kernel: Sequence[int]) -> list[int]:
    """How many pixels there are along each axis in the sum for one; enough for rows that are added behind."""
    attrs = match.root.attrs
    added = [int(extra) - int(cut) for extra, cut in zip(attrs.output_padding, attrs.padding[2:])]
    sizes = [max(size, size + more) for size, more in zip(kernel, added)]
    return [-(-size // int(step)) for size, step in zip(sizes, attrs.strides)]


def _filters(weight: np.ndarray, taps: Sequence[int], blocks: Sequence[int], groups: int) -> np.ndarray:
    """Those of each place in a block after those of another, for each group, in OHWI."""
    channels, filters, height, width = weight.shape
    behind = [(0, each * block - size) for each, block, size in zip(taps, blocks, (height, width))]
    split = np.pad(weight, [(0, 0), (0, 0), *behind]).reshape(
        groups, channels // groups, filters, taps[0], blocks[0], taps[1], blocks[1]
    )
    placed = split.transpose(0, 4, 6, 2, 3, 5, 1)[..., ::-1, ::-1, :]
    return np.ascontiguousarray(placed).reshape(-1, *taps, channels // groups)


def _shuffled(result: Expr, images: Sequence[Any], blocks: Sequence[int], filters: tuple[int, int]) -> Expr:
    """Depth to space in NHWC, by blocks that may be no squares, of filters in groups of so many."""
    if math.prod(blocks) == 1:
        return result
    batch, height, width = images
    groups, of_group = filters
    split = relax.op.reshape(result, (batch, height, width, groups, *blocks, of_group))
    moved = relax.op.permute_dims(split, [0, 1, 4, 2, 5, 3, 6])
    return relax.op.reshape(moved, (batch, height * blocks[0], width * blocks[1], groups * of_group))


def UpsampleByShuffle(
    to_be: str | None = None, target: tvm.target.Target | None = None
) -> tvm.transform.Pass:
    """Compute transposed convolutions as others: TVM has no schedule for them on LLVM.

    It comes before `ConvertToNHWC`, which moves the transposes. On CUDA, the operator has no kernel for
    float32, only for half precision, to which `InMixedPrecision` is `to_be` converting it.
    Without a target, all shapes must be known.
    """
    return rule_pass("UpsampleByShuffle", OfConv2dTranspose(to_be, target))
