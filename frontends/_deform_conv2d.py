"""Deformable convolution, for both frontends: what is read at the moved points, times the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import topi_ext

from tvm import relay

Pair = Sequence[int]


@dataclass(frozen=True)
class DeformConv2d:
    """The attributes of a convolution that reads each tap of its kernel at an offset, where there is a mask
    times its value; `padding` is before the image.

    Convention: as in torchvision. Pixel centres are at integer coordinates, and all off the image is 0.
    Offsets are (N, offset groups * taps * 2, height, width), y before x, and masks (N, offset groups * taps,
    height, width).
    """

    strides: Pair
    padding: Pair
    dilation: Pair
    groups: int
    offset_groups: int

    def __call__(
        self,
        data: relay.Expr,
        weight: relay.Expr,
        offset: relay.Expr,
        mask: relay.Expr | None,
        shapes: Sequence[Sequence[int]],
    ) -> relay.Expr:
        """The convolution, without a bias; `shapes` are those of the first three."""
        (batch, channels, height, width), (filters, of_group, *kernel), (_, _, *size) = shapes
        taps, places, maps = math.prod(kernel), math.prod(size), batch * self.offset_groups

        values = relay.reshape(
            relay.transpose(data, [0, 2, 3, 1]), [batch, height * width, self.offset_groups, -1]
        )
        values = _swapped(values, self.offset_groups, [0, 2, 1, 3], [maps, height * width, -1])
        moved = relay.reshape(relay.cast(offset, "float32"), [maps, taps, 2, places])
        moved = relay.transpose(moved, [0, 3, 1, 2]) + relay.const(self._taps_at(kernel, size), "float32")
        points = _from_edge_to_edge(moved, (height, width))
        weights = relay.ones([maps, places, taps], "float32")
        if mask is not None:
            weights = relay.transpose(relay.reshape(mask, [maps, taps, places]), [0, 2, 1])
        sampled = topi_ext.deformable_attention(
            values,
            relay.reshape(points, [maps, places * taps, 1, 2]),
            relay.reshape(weights, [maps, places * taps, 1]),
            levels=[(height, width, 1)],
        )

        # Channels of one group of either kind stay together: a block of them for each tap.
        blocks = math.lcm(self.groups, self.offset_groups)
        parts, block = blocks // self.offset_groups, channels // blocks
        columns = relay.reshape(sampled, [batch, self.offset_groups, places, taps, parts, block])
        columns = _swapped(
            columns, blocks, [0, 2, 1, 4, 3, 5], [batch * places, self.groups, taps * of_group]
        )
        rows = relay.reshape(weight, [filters, blocks // self.groups, block, taps])
        rows = relay.reshape(relay.transpose(rows, [0, 1, 3, 2]), [self.groups, -1, taps * of_group])
        if self.groups == 1:
            result = relay.nn.dense(relay.squeeze(columns, [1]), relay.squeeze(rows, [0]))
        else:
            result = relay.nn.batch_matmul(relay.transpose(columns, [1, 0, 2]), rows)
            result = relay.transpose(result, [1, 0, 2])
        return relay.transpose(relay.reshape(result, [batch, *size, filters]), [0, 3, 1, 2])

    def _taps_at(self, kernel: Pair, size: Pair) -> np.ndarray:
        """(y, x) of each tap at each place, (places, taps, 2), without offsets."""
        axes = [
            np.arange(count)[:, None] * stride - before + np.arange(taps)[None] * step
            for count, stride, before, taps, step in zip(
                size, self.strides, self.padding, kernel, self.dilation
            )
        ]
        shape = *size, *kernel
        rows = np.broadcast_to(axes[0][:, None, :, None], shape)
        columns = np.broadcast_to(axes[1][None, :, None, :], shape)
        return np.stack([rows, columns], -1).reshape(math.prod(size), math.prod(kernel), 2).astype("float32")


def _from_edge_to_edge(pixels: relay.Expr, size: Pair) -> relay.Expr:
    """(y, x) in pixels as (x, y) from -1 to 1."""
    scale, first = [2 / length for length in size], [1 / length - 1 for length in size]
    return relay.reverse(pixels * relay.const(scale, "float32") + relay.const(first, "float32"), -1)


def _swapped(data: relay.Expr, groups: int, axes: list[int], shape: list[int]) -> relay.Expr:
    """Transposed, where that changes the order: axes of groups have the length 1 if there is one group."""
    return relay.reshape(data if groups == 1 else relay.transpose(data, axes), shape)
