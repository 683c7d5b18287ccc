"""Convolutions of images that a shuffle or a resize has made larger, computed before it."""

from __future__ import annotations

from math import ceil

import numpy as np

from tvm import relay

from ..analysis.convolution import pairs, weights_of, why_not_plain, with_weights
from ..engine.rule import Refusal

# What tensor cores compute at once: fewer filters or channels take as long.
FILTERS, CHANNELS = 8, 16
# Multiplications that a GPU does while it moves one element to or from memory: 400 T/s to 2 T/s.
MULTIPLICATIONS_PER_ELEMENT = 200


def why_not_earlier(conv: relay.Call) -> Refusal | None:
    """Why a convolution cannot be computed before its data are made larger; None if it can."""
    refusal = why_not_plain(conv)
    if refusal:
        return refusal
    if any(stride != 1 for stride, *_ in pairs(conv)):
        return Refusal("the convolution has strides")
    for extent, (_, dilation, before, after) in zip(weights_of(conv).shape[2:], pairs(conv)):
        if before + after != (extent - 1) * dilation:
            return Refusal("the result is not as large as the image that the convolution sees")
        if min(before, after) < 0:
            return Refusal("the padding is negative")
    return None


def moved_convolution(conv: relay.Call, block: int, data: relay.Expr, weights: np.ndarray) -> relay.Call:
    """The convolution of the data before they are made larger, with the weights for that."""
    rows, columns = (_reach(*each) for each in _axes(conv, block))
    padding = [-rows[0], -columns[0], rows[-1], columns[-1]]
    return with_weights(conv, data, weights, padding=padding, dilation=(1, 1))


def cost(pixels: int, shape: tuple[int, ...]) -> float:
    """The cost of a convolution at so many pixels, in elements moved to or from memory."""
    filters, channels, rows, columns = shape
    columns_computed = ceil(filters / FILTERS) * FILTERS
    multiplications = pixels * columns_computed * ceil(channels / CHANNELS) * CHANNELS * rows * columns
    return max(multiplications / MULTIPLICATIONS_PER_ELEMENT, pixels * (filters + channels))


def moved_weights(conv: relay.Call, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """The weights of a convolution, moved in front of what makes its data larger.

    `outputs` are the channels that its result is shuffled from, and `inputs` those that its data are made
    from, both by (row in the block, column in the block, channel). Weights of the same input are summed.
    """
    weights, block = weights_of(conv), len(outputs)
    axes = _axes(conv, block)
    reach = [_reach(*each) for each in axes]
    shape = outputs.size, int(inputs.max(initial=-1)) + 1, *map(len, reach)
    moved = np.zeros(shape, np.promote_types(weights.dtype, "float32"))
    places = [
        # pixel of the block, tap, the pixel of x that it sees, and which one of that pixel's block
        [
            (pixel, tap, *divmod(pixel + tap * dilation - before, block))
            for pixel in range(block)
            for tap in range(taps)
        ]
        for _, taps, dilation, before in axes
    ]
    for i, row, seen_row, from_i in places[0]:
        for j, column, seen_column, from_j in places[1]:
            at = seen_row - reach[0][0], seen_column - reach[1][0]
            pair = outputs[i, j][:, None], inputs[from_i, from_j][None]
            moved[(*pair, *at)] += weights[:, :, row, column]
    return moved


def _axes(conv: relay.Call, block: int) -> list[tuple[int, int, int, int]]:
    """(block, taps, dilation, padding before) of the rows and of the columns."""
    taps = weights_of(conv).shape[2:]
    return [(block, count, dilation, before) for count, (_, dilation, before, _) in zip(taps, pairs(conv))]


def _reach(block: int, taps: int, dilation: int, before: int) -> range:
    """The pixels of x that a pixel of the block sees, as offsets from its own."""
    return range(-before // block, (block - 1 + (taps - 1) * dilation - before) // block + 1)
