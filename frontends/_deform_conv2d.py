"""Deformable convolution, for both frontends: what is read at the moved points, times the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import topi_ext

Pair = Sequence[int]
Expr = Any  # of Relay or of Relax


class Operators(Protocol):
    """What is computed with, in Relay or in Relax."""

    def constant(self, array: Any) -> Expr:
        """Numbers as float32."""

    def ones(self, shape: Sequence[int]) -> Expr:
        """As float32."""

    def in_float32(self, data: Expr) -> Expr: ...

    def add(self, left: Expr, right: Expr) -> Expr: ...

    def multiply(self, left: Expr, right: Expr) -> Expr: ...

    def reshape(self, data: Expr, shape: Sequence[int]) -> Expr: ...

    def transpose(self, data: Expr, axes: Sequence[int]) -> Expr: ...

    def reversed(self, data: Expr) -> Expr:
        """Back to front along the last axis."""

    def dense(self, left: Expr, right: Expr) -> Expr:
        """The products of the rows of two matrices, in the type of the first."""

    def batch_matmul(self, left: Expr, right: Expr) -> Expr:
        """The same of each item of two batches."""


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
        ops: Operators,
        data: Expr,
        weight: Expr,
        offset: Expr,
        mask: Expr | None,
        shapes: Sequence[Sequence[int]],
    ) -> Expr:
        """The convolution, without a bias; `shapes` are those of the first three."""
        (batch, channels, height, width), (filters, of_group, *kernel), (_, _, *size) = shapes
        taps, places, maps = math.prod(kernel), math.prod(size), batch * self.offset_groups

        values = ops.reshape(
            ops.transpose(data, [0, 2, 3, 1]), [batch, height * width, self.offset_groups, -1]
        )
        values = _swapped(ops, values, self.offset_groups, [0, 2, 1, 3], [maps, height * width, -1])
        moved = ops.reshape(ops.in_float32(offset), [maps, taps, 2, places])
        moved = ops.add(ops.transpose(moved, [0, 3, 1, 2]), ops.constant(self._taps_at(kernel, size)))
        points = _from_edge_to_edge(ops, moved, (height, width))
        weights = ops.ones([maps, places, taps])
        if mask is not None:
            weights = ops.transpose(ops.reshape(mask, [maps, taps, places]), [0, 2, 1])
        sampled = topi_ext.deformable_attention(
            values,
            ops.reshape(points, [maps, places * taps, 1, 2]),
            ops.reshape(weights, [maps, places * taps, 1]),
            levels=[(height, width, 1)],
        )

        # Channels of one group of either kind stay together: a block of them for each tap.
        blocks = math.lcm(self.groups, self.offset_groups)
        parts, block = blocks // self.offset_groups, channels // blocks
        columns = ops.reshape(sampled, [batch, self.offset_groups, places, taps, parts, block])
        columns = _swapped(
            ops, columns, blocks, [0, 2, 1, 4, 3, 5], [batch * places, self.groups, taps * of_group]
        )
        rows = ops.reshape(weight, [filters, blocks // self.groups, block, taps])
        rows = ops.reshape(ops.transpose(rows, [0, 1, 3, 2]), [self.groups, -1, taps * of_group])
        if self.groups == 1:
            columns, rows = (ops.reshape(each, [-1, taps * of_group]) for each in (columns, rows))
            result = ops.dense(columns, rows)
        else:
            result = ops.batch_matmul(ops.transpose(columns, [1, 0, 2]), rows)
            result = ops.transpose(result, [1, 0, 2])
        return ops.transpose(ops.reshape(result, [batch, *size, filters]), [0, 3, 1, 2])

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


def _from_edge_to_edge(ops: Operators, pixels: Expr, size: Pair) -> Expr:
    """(y, x) in pixels as (x, y) from -1 to 1."""
    scale, first = [2 / length for length in size], [1 / length - 1 for length in size]
    return ops.reversed(ops.add(ops.multiply(pixels, ops.constant(scale)), ops.constant(first)))


def _swapped(ops: Operators, data: Expr, groups: int, axes: list[int], shape: list[int]) -> Expr:
    """Transposed, where that changes the order: axes of groups have the length 1 if there is one group."""
    return ops.reshape(data if groups == 1 else ops.transpose(data, axes), shape)
