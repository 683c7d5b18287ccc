"""Turn a transposed convolution into a convolution and a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import as_constant
from ..engine.expressions import constant
from ..engine.rule import Match, Refusal, Rule, RulePass


class OfTransposedConvolution(Rule):
    """Replace nn.conv2d_transpose with a convolution and nn.depth_to_space of its result.

    Why legal: with a stride of s, the pixel s * q + r of the result (along each axis) is the sum of
    `data[q + d] * weight[r + padding - s * d]` over all d for which the kernel has that tap. So for each r
    there is a convolution, and all of them together are one of s * s times as many filters, which are 0 where
    the kernel of an r has no tap. Where kernels do not overlap, it is a 1x1 convolution. Around an infinite
    pixel these zeros may make the result NaN.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.conv2d_transpose")(data, weight)

    def plan(self, match: Match) -> list[_Axis] | Refusal:
        """How the convolution goes along each axis."""
        attrs = match.root.attrs
        if constant(match.weight) is None:
            return Refusal("the weights of the convolution are not constant")
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "IOHW"):
            return Refusal(
                f"the layouts are {attrs.data_layout} and {attrs.kernel_layout}, not NCHW and IOHW"
            )
        if any(int(each) != 1 for each in attrs.dilation) or int(attrs.groups) != 1:
            return Refusal("the convolution is dilated or grouped")
        if str(attrs.out_layout) not in ("", "NCHW") or _dtypes(match) != {match.data.checked_type.dtype}:
            return Refusal("the result is in another layout, or the types differ")
        stride, *others = {int(each) for each in attrs.strides}
        if others:
            return Refusal("the strides differ")
        axes = _axes(match)
        if any(axis.more % stride for axis in axes):
            return Refusal("the size of the result is not a multiple of the stride")
        if any(min(axis.pads) < 0 for axis in axes):
            return Refusal("the convolution would have to crop a border")
        return axes

    def rewrite(self, match: Match, plan: list[_Axis]) -> relay.Expr:
        weight, stride = match.weight.data.numpy(), int(match.root.attrs.strides[0])
        channels, filters = weight.shape[:2]
        sizes = [axis.size for axis in plan]
        deep = np.zeros((stride, stride, filters, channels, *sizes), weight.dtype)
        for (row, rows), (column, columns) in product(*(axis.places() for axis in plan)):
            deep[row[0], column[0], :, :, row[1], column[1]] = weight[:, :, rows, columns].T
        (top, bottom), (left, right) = (axis.pads for axis in plan)
        conv = relay.nn.conv2d(
            match.data,
            as_constant(deep.reshape(-1, channels, *sizes), match.weight.data.dtype),
            padding=(top, left, bottom, right),
            channels=stride * stride * filters,
            kernel_size=sizes,
        )
        return relay.nn.depth_to_space(conv, stride, "NCHW", "DCR") if stride > 1 else conv


class _Axis:
    """How a convolution goes along one axis in place of a transposed one.

    The result is `more` pixels longer than the data times the stride, whatever their number.
    """

    def __init__(self, kernel: int, stride: int, padding: int, more: int) -> None:
        self.more = more
        self._kernel, self._stride, self._padding = kernel, stride, padding
        self._first = -((kernel - 1 - padding) // stride)  # the least d
        self.size = (stride - 1 + padding) // stride - self._first + 1
        self.pads = -self._first, more // stride - 1 + self.size + self._first

    def places(self) -> Iterator[tuple[tuple[int, int], int]]:
        """((pixel of the block, tap of the new kernel), tap of the old kernel) for all that correspond."""
        for remainder, place in product(range(self._stride), range(self.size)):
            old = remainder + self._padding - self._stride * (place + self._first)
            if 0 <= old < self._kernel:
                yield (remainder, place), old


class UpsampleByShuffle(RulePass):
    """Compute transposed convolutions as convolutions with a shuffle.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((8, 3, 2, 2), "float32"))
    >>> options = {"channels": 3, "kernel_size": (2, 2), "strides": (2, 2)}
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d_transpose(x, weight, **options))
    >>> print(tvm_passes.as_text(tvm_passes.UpsampleByShuffle()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 3, 12, 20), float32] {
      %0 = nn.conv2d(%x, const[(12, 8, 1, 1), float32], padding=[0, 0, 0, 0], channels=12,
          kernel_size=[1, 1]);
      nn.depth_to_space(%0, block_size=2)
    }
    """

    rules = (OfTransposedConvolution,)


def _axes(match: Match) -> list[_Axis]:
    attrs = match.root.attrs
    padding = [int(each) for each in attrs.padding]
    # Given as one number, one of each axis, or of each side, top and left first.
    before, after = (padding * 2)[:2], (padding * 2)[-2:]
    kernels = map(int, match.weight.checked_type.shape[2:])
    added = [int(each) for each in attrs.output_padding]
    return [
        _Axis(kernel, stride, start, kernel - stride - start - end + more)
        for kernel, stride, start, end, more in zip(
            kernels, map(int, attrs.strides), before, after, (added * 2)[:2]
        )
    ]


def _dtypes(match: Match) -> set[str]:
    return {expr.checked_type.dtype for expr in (match.data, match.weight, match.root)}
