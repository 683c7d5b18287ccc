"""COCO's run lengths of masks, in the pixels of the image from those of the network's input.

Runs are resized as runs: no mask becomes an image of pixels on the way, which would take a hundred times as
long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topi_ext.encode_masks.reference import counts_of_string, string_of_changes
from topi_ext.paste_masks.reference import grown, weights

from .letterbox import Placed

THRESHOLD = 0.5  # of a mask's probabilities


def of_pixels(pixels: np.ndarray, size: Sequence[int], corner: Sequence[int] = (0, 0)) -> bytes:
    """The run lengths of a mask in an image of this size, all of which is in these pixels, at this corner."""
    steps = np.diff(np.pad(pixels.T.astype("int8"), [(0, 0), (1, 1)]), axis=1)
    (columns, first), (_, last) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    start = (corner[1] + columns) * size[0] + corner[0]
    return _string(start + first, start + last, size)


def of_box(mask: np.ndarray, box: np.ndarray, size: Sequence[int]) -> bytes:
    """The run lengths of a small mask of probabilities, pasted as `topi_ext.paste_masks` does."""
    if not np.isfinite(box).all():
        return of_pixels(np.zeros((0, 0), bool), size)
    left, top, right, bottom = grown(box, len(mask))
    rows, columns = (
        slice(max(int(first), 0), max(min(int(last) + 1, length), 0))
        for first, last, length in ((top, bottom, size[0]), (left, right, size[1]))
    )
    vertical, horizontal = weights(top, bottom, len(mask), size[0]), weights(left, right, len(mask), size[1])
    pixels = vertical[rows] @ mask.astype("float32") @ horizontal[columns].T
    return of_pixels(pixels >= np.float32(THRESHOLD), size, (rows.start, columns.start))


def in_the_image(string: bytes, placed: Placed) -> bytes:
    """A mask of the whole input, padding included, as one of the image: each pixel is the nearest one."""
    if placed.image == placed.given:
        return string
    column, first, last = _intervals(counts_of_string(string), placed.given[0])
    columns, rows = (
        _nearest(length, given) for length, given in zip(placed.image[::-1], placed.resized[::-1])
    )
    # The intervals of each column of the image are those of the column that it shows.
    begin, end = np.searchsorted(column, columns, "left"), np.searchsorted(column, columns, "right")
    number = end - begin
    taken = np.arange(number.sum()) + np.repeat(begin - (np.cumsum(number) - number), number)
    tops, bottoms = np.searchsorted(rows, first[taken]), np.searchsorted(rows, last[taken])
    start = np.repeat(np.arange(len(columns)), number) * placed.image[0]
    return _string((start + tops)[tops < bottoms], (start + bottoms)[tops < bottoms], placed.image)


def _string(starts: np.ndarray, ends: np.ndarray, size: Sequence[int]) -> bytes:
    """Of runs in order, some of which end where the next one starts."""
    pixels = size[0] * size[1]
    changes = np.stack([starts, ends], 1).ravel()
    is_kept = changes < pixels
    is_joined = changes[1:] == changes[:-1]
    is_kept[1:] &= ~is_joined
    is_kept[:-1] &= ~is_joined
    return string_of_changes(changes[is_kept], pixels)


def area(string: bytes) -> int:
    """The pixels of a mask."""
    return int(counts_of_string(string)[1::2].sum())


def _nearest(length: int, given: int) -> np.ndarray:
    """Which of the `given` pixels along an axis each of `length` shows."""
    return (2 * np.arange(length) + 1) * given // (2 * length)


def _intervals(counts: np.ndarray, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of ones, divided into columns: the column, the first row, and the row behind the last."""
    ends = np.cumsum(counts)
    stop = ends[1::2]
    start = ends[0::2][: len(stop)]
    start, stop = start[start < stop], stop[start < stop]
    number = (stop - 1) // height - start // height + 1  # of columns
    at = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    column = np.repeat(start // height, number) + at
    first = np.maximum(np.repeat(start, number) - column * height, 0)
    last = np.minimum(np.repeat(stop, number) - column * height, height)
    return column, first, last
