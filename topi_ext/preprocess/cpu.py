"""Preprocessing for LLVM: rows of the result in parallel.

A row is first resized down the columns only, a vector at a time, into a row of float32; from that, wherever
they lie, come its pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from .._floats import Locals
from .._kernel import in_a_row
from .._tvm import BufferVar, IRBuilder, te, tir
from .._types import IntExpr
from .kernel import Place, all_of, beginnings, between, lined_up, normalisation, place
from .problem import Problem

LANES = 16


def preprocess(problems: Sequence[Problem], images: Sequence[te.Tensor]) -> te.Tensor:
    """The result of `topi_ext.preprocess`; there is a problem for each tensor of images."""

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        for begin, problem, given, image in zip(beginnings(images), problems, images, ins):
            _Images(ib, problem, image, *outs).emit(given.shape[0], begin)
        return ib.get()

    shape = [all_of(images), *problems[0].shape]
    return te.extern([shape], [*images], emit, dtype=[problems[0].dtype], name="preprocess")


class _Images:
    def __init__(self, ib: IRBuilder, problem: Problem, image: tir.Buffer, output: tir.Buffer) -> None:
        self._ib, self._problem, self._local = ib, problem, Locals(ib, "global")
        self._image, self._output = (in_a_row(ib, each)[0] for each in (image, output))

    def emit(self, count: tir.PrimExpr, begin: IntExpr) -> None:
        """These images, which are those of the result from `begin` on."""
        ib, problem, local = self._ib, self._problem, self._local
        size, (height, width) = problem.size, problem.padded_size
        columns = self._columns()
        normalisations = [normalisation(local, problem, channel) for channel in range(problem.channels)]
        with ib.for_range(0, count * height, "task", kind="parallel") as task:
            index, y = tir.truncdiv(task, height).astype("int64"), local("y", tir.truncmod(task, height))
            target = local("target", (index + begin) * prod(problem.shape) + y * problem.strides[1])
            with ib.if_scope(y < size[0]):
                down = place(local, y, problem.given[0], size[0])
                row = self._row(local("start", index * problem.image_elements), down)
                with ib.for_range(0, size[1], "x") as x:
                    across = columns(x)
                    for channel, (factor, summand) in enumerate(normalisations):
                        pixel = self._pixel(row, problem.source(channel), across)
                        self._write(target, channel, x, pixel * factor + summand)
                    for channel in range(problem.channels, problem.padded_channels):
                        self._write(target, channel, x, tir.const(0.0))
                self._zeros(target, size[1], width)
            with ib.else_scope():
                self._zeros(target, 0, width)

    def _columns(self) -> Callable[[tir.PrimExpr], Place]:
        """The place of each column of the result, computed once: a function of its number."""
        given, width = self._problem.given[1], self._problem.size[1]
        lows = self._ib.allocate("int32", width, "lows", scope="global")
        fractions = self._ib.allocate("float32", width, "fractions", scope="global")
        with self._ib.for_range(0, width, "x") as x:
            across = place(self._local, x, given, width)
            lows[x] = across.low
            if across.fraction is not None:
                fractions[x] = across.fraction
        return lambda x: Place(lows[x], None if across.fraction is None else fractions[x])

    def _row(self, start: tir.PrimExpr, down: Place) -> BufferVar:
        """All columns of the image at one height, in the order in which the image has them."""
        problem = self._problem
        of_channel, of_row, _ = problem.image_strides
        length = problem.given[1] * problem.channels
        row = self._ib.allocate("float32", length, "resized_down", scope="global")
        parts = problem.channels if problem.image_layout == "NCHW" else 1
        length //= parts
        for part in range(parts):
            first = self._local("first", start + down.low * of_row + part * of_channel)
            whole = length // LANES
            with self._ib.for_range(0, whole, "i") as i:
                self._resize_down(row, part * length + i * LANES, first + i * LANES, down, LANES)
            with self._ib.for_range(0, length - whole * LANES, "i") as i:
                at = whole * LANES + i
                self._resize_down(row, part * length + at, first + at, down, 1)
        return row

    def _resize_down(self, row: BufferVar, at: IntExpr, first: tir.PrimExpr, down: Place, lanes: int) -> None:
        """Some elements of the row, from those in the image from `first` on."""

        def read(first: tir.PrimExpr) -> tir.PrimExpr:
            return self._image[lined_up(first, lanes)].astype(f"float32x{lanes}")

        value = read(first)
        if down.fraction is not None:
            below = read(first + self._problem.image_strides[1])
            fraction = tir.Broadcast(down.fraction, lanes) if lanes > 1 else down.fraction
            value = between(value, below, fraction)
        row[lined_up(at, lanes)] = value

    def _pixel(self, row: BufferVar, channel: IntExpr, across: Place) -> tir.PrimExpr:
        is_planar = self._problem.image_layout == "NCHW"
        of_channel = self._problem.given[1] if is_planar else 1
        of_column = self._problem.image_strides[2]
        at = channel * of_channel + across.low * of_column
        if across.fraction is None:
            return row[at]
        return between(row[at], row[at + of_column], across.fraction)

    def _write(self, target: tir.PrimExpr, channel: IntExpr, x: tir.PrimExpr, value: tir.PrimExpr) -> None:
        of_channel, _, of_column = self._problem.strides
        at = target + channel * of_channel + x * of_column
        self._output[at] = value.astype(self._problem.dtype)

    def _zeros(self, target: tir.PrimExpr, begin: IntExpr, end: IntExpr) -> None:
        """In the columns from `begin` to `end` of a row of the result."""
        with self._ib.for_range(0, end - begin, "x") as x:
            for channel in range(self._problem.padded_channels):
                self._write(target, channel, begin + x, tir.const(0.0))
