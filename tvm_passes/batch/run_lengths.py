"""COCO's run lengths of masks, in the pixels of the image from those of the network's input.

Runs are resized as runs: no mask becomes an image of pixels on the way, which would take a hundred times as
long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topi_ext.encode_masks import reference

from .letterbox import Placed


def encoded(probabilities: np.ndarray, threshold: float = 0.5) -> list[bytes]:
    """The run lengths of masks (N, height, width)."""
    strings = []
    for mask in probabilities:
        pixels = (mask >= threshold).ravel(order="F")
        changes = np.flatnonzero(np.diff(pixels, prepend=False))
        strings.append(reference.string_of_changes(changes, pixels.size))
    return strings


def in_the_image(string: bytes, placed: Placed) -> bytes:
    """A mask of the whole input, padding included, as one of the image: each pixel is the nearest one."""
    if placed.image == placed.given:
        return string
    column, first, last = _intervals(reference.counts_of_string(string), placed.given[0])
    columns, rows = (
        _nearest(length, given) for length, given in zip(placed.image[::-1], placed.resized[::-1])
    )
    # The intervals of each column of the image are those of the column that it shows.
    begin, end = np.searchsorted(column, columns, "left"), np.searchsorted(column, columns, "right")
    number = end - begin
    taken = np.arange(number.sum()) + np.repeat(begin - (np.cumsum(number) - number), number)
    tops, bottoms = np.searchsorted(rows, first[taken]), np.searchsorted(rows, last[taken])
    start = np.repeat(np.arange(len(columns)), number) * placed.image[0]
    changes = np.stack([start + tops, start + bottoms], 1)[tops < bottoms].ravel()
    pixels = placed.image[0] * placed.image[1]
    is_kept = changes < pixels
    is_joined = changes[1:] == changes[:-1]  # a run ends where the next one begins
    is_kept[1:] &= ~is_joined
    is_kept[:-1] &= ~is_joined
    return reference.string_of_changes(changes[is_kept], pixels)


def area(string: bytes) -> int:
    """The pixels of a mask."""
    return sum(reference.counts_of_string(string)[1::2])


def _nearest(length: int, given: int) -> np.ndarray:
    """Which of the `given` pixels along an axis each of `length` shows."""
    return (2 * np.arange(length) + 1) * given // (2 * length)


def _intervals(counts: Sequence[int], height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of ones, divided into columns: the column, the first row, and the row behind the last."""
    ends = np.cumsum(np.array(counts, "int64"))
    stop = ends[1::2]
    start = ends[0::2][: len(stop)]
    start, stop = start[start < stop], stop[start < stop]
    number = (stop - 1) // height - start // height + 1  # of columns
    at = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    column = np.repeat(start // height, number) + at
    first = np.maximum(np.repeat(start, number) - column * height, 0)
    last = np.minimum(np.repeat(stop, number) - column * height, height)
    return column, first, last
