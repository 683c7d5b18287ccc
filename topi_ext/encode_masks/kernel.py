"""What of an image can change, and how changes become COCO's run lengths, emitted alike for every target.

Pixels are numbered down the columns. A change is a pixel that differs from the one before; before the first
is a 0. The lengths of the runs of zeros and ones in turn are the distances of the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from .._floats import Locals
from .._register import known
from .._tvm import BufferVar, IRBuilder, convert, te, tir
from .._types import IntExpr
from ..paste_masks.kernel import Masks, Neighbours, Span

BITS = 5  # of a number in each byte
MAX_BYTES = 7  # of a number of 32 bits
FOUR_RUNS = 24  # bytes of a column with four runs of ones: eight numbers of three bytes
EXTRA = 64  # for what comes before, after, and between columns


def default_capacity(width: int) -> int:
    """The bytes for a mask in an image of this width."""
    return FOUR_RUNS * width + EXTRA


def encoded(
    inputs: Sequence[te.Tensor],
    image_size: Sequence[IntExpr],
    outputs: Sequence[tuple[Sequence[IntExpr], str]],
    emit: Callable[[Sequence[tir.Buffer], Sequence[tir.Buffer]], tir.Stmt],
) -> te.Tensor:
    """The first of the outputs, each of which has a shape and a type; `emit` writes them.

    A kernel for all sizes of images reads them from the shape of one more, in which nothing is written.
    """
    is_for_all = any(known(length) is None for length in image_size)
    shapes, types = zip(*outputs, *([(image_size, "uint8")] if is_for_all else []))
    tensors = te.extern([*shapes], [*inputs], emit, dtype=[*types], name="encode_masks")
    return tensors if isinstance(tensors, te.Tensor) else tensors[0]


@dataclass(frozen=True)
class Window:
    """The part of an image that has all changes: the box, and one row and column behind it.

    What is left out are whole runs of pixels outside boxes. A box that reaches the last row counts from the
    first one, since the end of a column is next to the beginning of another.
    """

    top: tir.PrimExpr
    bottom: tir.PrimExpr
    left: tir.PrimExpr
    right: tir.PrimExpr

    @staticmethod
    def of(local: Locals, rows: Span, columns: Span, image_size: Sequence[IntExpr], nothing: int) -> Window:
        height, width = image_size
        if nothing:  # then the pixels outside boxes are ones, and change at the first pixel
            return Window(*map(convert, (0, height, 0, width)))
        is_somewhere = tir.all(rows.begin < rows.end, columns.begin < columns.end)
        left = local("left", columns.begin)
        return Window(
            local("top", tir.Select(rows.end >= height, 0, rows.begin)),
            local("bottom", te.min(rows.end + 1, height)),
            left,
            local("right", tir.Select(is_somewhere, te.min(columns.end + 1, width), left)),
        )


class Runs:
    """The numbers that COCO writes for changes in order; of the changes before, it needs the last three."""

    def __init__(self, local: Locals) -> None:
        self._local = local
        zero = tir.const(0)
        self.count = local.variable("count", zero)
        self.last = [local.variable("last", zero) for _ in range(3)]

    @property
    def state(self) -> list[BufferVar]:
        return [self.count, *self.last]

    def next(self, place: tir.PrimExpr) -> tir.PrimExpr:
        """The number for a run that ends in front of this place: its length, from the fourth run on less
        that of the run two before."""
        last, second, third = (variable[0] for variable in self.last)
        before = tir.Select(self.count[0] > 2, second - third, 0)
        number = self._local("number", place - last - before)
        for variable, value in zip(reversed(self.last), (second, last, place)):
            variable[0] = value
        self.count[0] = self.count[0] + 1
        return number


def size_of(number: tir.PrimExpr) -> tir.PrimExpr:
    """How many bytes a number takes: groups of five bits, the highest of which is its sign."""
    magnitude = number ^ (number >> 31)
    more = ((magnitude >= 1 << (BITS * size - 1)).astype("int32") for size in range(1, MAX_BYTES))
    return reduce(add, more, tir.const(1))


def write(
    ib: IRBuilder, local: Locals, number: tir.PrimExpr, at: BufferVar, put: Callable[..., None]
) -> None:
    """Write a number by `put(place, byte)`, from the place `at` on, and advance that."""
    size = local("size", size_of(number))
    with ib.for_range(0, size, "byte") as index:
        five = (number >> (index * BITS)) & ((1 << BITS) - 1)
        put(at[0] + index, (five + tir.Select(index + 1 < size, 48 + 32, 48)).astype("uint8"))
    at[0] = at[0] + size


def pixel(
    ib: IRBuilder,
    masks: Masks,
    number: tir.PrimExpr,
    spans: tuple[Span, Span],
    place: tuple[tir.PrimExpr, tir.PrimExpr],
    xs: Neighbours,
) -> tir.PrimExpr:
    """The pixel at a row and a column, 0 or 1, in the box or outside; `xs` are its neighbours across."""
    (rows, columns), (y, x) = spans, place
    value = masks.local.variable("value", masks.nothing)
    with ib.if_scope(tir.all(rows.holds(y), columns.holds(x))):
        value[0] = masks.pixel(number, masks.neighbours(rows, y), xs, rows.zero)
    return value[0].astype("int32")


def eight_pixels(
    ib: IRBuilder, masks: Masks, number: tir.PrimExpr, y: tir.PrimExpr, at: tir.PrimExpr, width: int
) -> tir.PrimExpr:
    """A byte of the packed bits of a row: the first pixel is the highest bit, and there are zeros behind
    the last."""
    local = masks.local
    rows, columns = spans = masks.spans(number)
    byte = local.variable("byte", tir.const(0))
    in_box = tir.all(rows.holds(y), at * 8 < columns.end, at * 8 + 8 > columns.begin)
    with ib.if_scope(in_box), ib.for_range(0, 8, "bit") as bit:
        x = local("x", at * 8 + bit)
        value = pixel(ib, masks, number, spans, (y, x), masks.neighbours(columns, x))
        byte[0] = byte[0] | (value << (7 - bit))
    with ib.else_scope():
        byte[0] = masks.nothing.astype("int32") * 255
    unused = te.max(at * 8 + 8 - width, 0)
    return (byte[0] & (255 << unused) & 255).astype("uint8")
