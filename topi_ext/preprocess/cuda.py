"""Preprocessing on CUDA: a thread makes a few neighbouring elements of a row, in some rows below each other.

The threads of a warp lie along a row of the result, so what they write, and nearly all they read, is side by
side. In NHWC the channels are in the row, and four of them are one word; in NCHW a thread makes all of them,
as the image has them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from .._floats import Locals
from .._kernel import ceil_div, in_a_row, launch, local
from .._tvm import IRBuilder, te, tir
from .._types import IntExpr
from .kernel import Place, all_of, beginnings, between, lined_up, normalisation, place
from .problem import Problem

THREADS = 128
WRITTEN_AT_ONCE = {"float32": 1, "float16": 2}  # elements, of 4 bytes
PIXEL = 4  # channels that are written at once: a thread knows them when it is compiled
MAX_ROWS = 4


def preprocess(problems: Sequence[Problem], images: Sequence[te.Tensor]) -> te.Tensor:
    """The result of `topi_ext.preprocess`; there is a problem for each tensor of images."""
    count = all_of(images)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        first, *_ = parts = [_Images(ib, problem, image, outs[0]) for problem, image in zip(problems, ins)]
        with ib.if_scope(tir.const(0, "int32") < count), first.each_word(count) as (index, row, word):
            for begin, part, given in zip(beginnings(images), parts, images):
                is_of_part = tir.all(index >= begin, index < begin + given.shape[0])
                with ib.if_scope(is_of_part) if len(parts) > 1 else nullcontext():
                    part.emit_rows(index - begin, index, row, word)
        return ib.get()

    shape = [count, *problems[0].shape]
    return te.extern([shape], [*images], emit, dtype=[problems[0].dtype], name="preprocess")


@dataclass(frozen=True)
class _Column:
    """An element of every row: its channel, or in NCHW those of all planes, with factor and summand.

    A channel that the image does not have is not among them.
    """

    channels: Sequence[IntExpr]
    x: tir.PrimExpr
    place: Place
    normalisations: list[tuple[tir.PrimExpr, tir.PrimExpr]]


class _Images:
    """The part of the one kernel that reads one tensor of images."""

    def __init__(self, ib: IRBuilder, problem: Problem, image: tir.Buffer, output: tir.Buffer) -> None:
        self._ib, self._problem, self._local = ib, problem, Locals(ib, "local")
        self._image, self._output = (in_a_row(ib, each)[0] for each in (image, output))
        height, width = problem.padded_size
        self._interleaved = problem.padded_channels if problem.layout == "NHWC" else 1
        self._row_length = width * self._interleaved
        at_once = PIXEL if self._interleaved == PIXEL else WRITTEN_AT_ONCE[problem.dtype]
        self._lanes = _largest_divisor(self._row_length, at_once)
        self._rows = _largest_divisor(height, MAX_ROWS)

    @contextmanager
    def each_word(self, count: IntExpr) -> Iterator[tuple[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr]]:
        """Each thread's image of the result, first row and word; the same for all tensors of images."""
        height, _ = self._problem.padded_size
        words, groups = self._row_length // self._lanes, height // self._rows
        blocks = ceil_div(words, THREADS)
        with launch(self._ib, count * (groups * blocks), THREADS) as (block, thread):
            index = local(self._ib, "index", tir.truncdiv(block, groups * blocks))
            group = local(self._ib, "group", tir.truncmod(tir.truncdiv(block, blocks), groups))
            word = local(self._ib, "word", tir.truncmod(block, blocks) * THREADS + thread)
            with self._ib.if_scope(word < words):
                yield index, group * self._rows, word

    def emit_rows(
        self, index: tir.PrimExpr, index_in_result: tir.PrimExpr, first: tir.PrimExpr, word: tir.PrimExpr
    ) -> None:
        """One word in each of the rows from `first` on."""
        problem, ib = self._problem, self._ib
        height = problem.padded_size[0]
        start = self._local("start", index.astype("int64") * problem.image_elements)
        target = self._local("target", index_in_result.astype("int64") * prod(problem.shape))
        columns = [self._column(word, lane) for lane in range(self._lanes)]
        with ib.for_range(0, self._rows, "row", kind="unroll") as row:
            y = self._local("y", first + row)
            down = place(self._local, y, problem.given[0], problem.size[0])
            for plane in range(problem.padded_channels // self._interleaved):
                values = ib.allocate(problem.dtype, self._lanes, "values", scope="local")
                for lane, column in enumerate(columns):
                    if plane >= len(column.channels):
                        values[lane] = tir.const(0.0, problem.dtype)
                        continue
                    pixel = self._pixel(start, column.channels[plane], down, column.place)
                    factor, summand = column.normalisations[plane]
                    # In a variable: read in any case, it need not wait for whether it is wanted.
                    value = self._local("value", pixel * factor + summand)
                    values[lane] = self._padded(value, y, column.x).astype(problem.dtype)
                at = (plane * height + y) * self._row_length + word * self._lanes
                self._output[lined_up(target + at, self._lanes)] = values[lined_up(0, self._lanes)]

    def _column(self, word: tir.PrimExpr, lane: int) -> _Column:
        """What all rows have in common for one element of a word of a row."""
        given, width = self._problem.given[1], self._problem.size[1]
        channels: Sequence[IntExpr] = range(self._problem.channels)
        element = word * self._lanes + lane
        if self._interleaved == self._lanes > 1:
            channels, x = channels[lane : lane + 1], word
        else:
            if self._interleaved > 1:
                channels = [self._local("channel", tir.truncmod(element, self._interleaved))]
            x = self._local("x", tir.truncdiv(element, self._interleaved))
        return _Column(
            channels,
            x,
            place(self._local, x, given, width),
            [normalisation(self._local, self._problem, channel) for channel in channels],
        )

    def _padded(self, value: tir.PrimExpr, y: tir.PrimExpr, x: tir.PrimExpr) -> tir.PrimExpr:
        """A value of the result where it is of the image, else zero."""
        for at, length, padded in zip((y, x), self._problem.size, self._problem.padded_size):
            if length < padded:
                value = tir.Select(at < length, value, tir.const(0.0))
        return value

    def _pixel(self, start: tir.PrimExpr, channel: IntExpr, down: Place, across: Place) -> tir.PrimExpr:
        """The value of the image at a place."""
        of_channel, of_row, of_column = self._problem.image_strides
        first = down.low * of_row + across.low * of_column + self._problem.source(channel) * of_channel
        first = self._local("first", start + first)

        def along_row(first: tir.PrimExpr) -> tir.PrimExpr:
            value = self._image[first].astype("float32")
            if across.fraction is None:
                return value
            return between(value, self._image[first + of_column].astype("float32"), across.fraction)

        if down.fraction is None:
            return along_row(first)
        return between(self._local("above", along_row(first)), along_row(first + of_row), down.fraction)


def _largest_divisor(number: int, most: int) -> int:
    """The largest power of two up to `most` that divides a number."""
    return next(divisor for divisor in (4, 2, 1) if divisor <= most and number % divisor == 0)
