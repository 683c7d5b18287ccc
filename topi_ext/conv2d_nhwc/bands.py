"""A convolution by bands of rows that stay in the cache, for what is done with its result."""

from __future__ import annotations

from dataclasses import replace

from .problem import Problem


def rows_of_a_band(problem: Problem, row: int, most: int, multiple: int = 1) -> int:
    """How many rows of so many bytes take `most` bytes or less, in bands of about the same length.

    All, where weights would be packed anew for each band, and where a band might read padding alone.
    """
    (top, _, bottom, _), (reach, _), (height, _) = problem.padding, problem.reach, problem.out_size
    if not problem.weight_id or max(top, bottom) >= reach:
        return height
    bands = -(-height // max(most // row, 1))
    rows = -(-height // bands)
    return min(-(-rows // multiple) * multiple, height)


def band_of(problem: Problem, begin: int, count: int) -> tuple[Problem, int]:
    """The convolution that computes so many rows of an image, and the first row that it reads."""
    (height, width), (top, left, _, right) = problem.size, problem.padding
    first = begin * problem.strides[0] - top
    end = first + (count - 1) * problem.strides[0] + problem.reach[0]
    inside = min(max(first, 0), height), min(max(end, 0), height)
    size, padding = (inside[1] - inside[0], width), (inside[0] - first, left, end - inside[1], right)
    return replace(problem, batch=1, block=1, size=size, padding=padding), inside[0]
