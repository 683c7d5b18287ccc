"""`scatter_nd` and `scatter_elements` on CUDA, with a thread for each element that is written.

TVM goes along the indices in a loop: a permutation of 16,384 elements that is inverted by a scatter takes one
thread 1.4 ms, and is copied by blocks of one thread. Importing this module gives each element a thread where
elements replace others, or float32 and int32 are added. Of several that replace the same one, the last holds,
as it does with TVM: each place first learns which one that is. The order in which floats are added is no
longer that of the indices, as in PyTorch. Indices outside the data write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

from tvm import te, tir, topi

from .._kernel import ceil_div, in_a_row, launch, local
from .._register import known
from .._tvm import IRBuilder, atomic
from .._types import IntExpr
from . import in_bounds  # noqa: F401  whose functions take all else

THREADS = 256  # of a block
FEW = 8  # indices in a loop, which one thread may go along
ADDED = ("float32", "int32")


class _Scatter(NamedTuple):
    """What is written where, rows of neighbouring elements at a time."""

    rows: IntExpr  # of the data
    row: IntExpr  # the elements of one
    written: IntExpr  # rows that are written
    place: Callable[[IRBuilder, tir.Buffer, tir.PrimExpr], tuple[tir.PrimExpr, tir.PrimExpr]]
    """Of a row to write: which row of the data it is, and whether there is such a one."""


_stock_nd, _stock_elements = topi.cuda.scatter_nd, topi.cuda.scatter_elements


def scatter_nd(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, mode: str) -> te.Tensor:
    coordinates, *places = indices.shape
    depth, count = known(coordinates), _product(places)
    if depth is None or not _is_ours(data, mode) or _is_few(count):
        return _stock_nd(data, indices, updates, mode)

    def place(ib: IRBuilder, buffer: tir.Buffer, at: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        given, wide = in_a_row(ib, buffer)[0], "int64"
        row, is_inside = tir.const(0, wide), []
        for axis, length in enumerate(data.shape[:depth]):
            index = given[at + axis * count].astype(wide)
            row = row * length + index
            is_inside += [index >= 0, index < length]
        return row, tir.all(*is_inside)

    rows, row = _product(data.shape[:depth]), _product(data.shape[depth:])
    return _scattered(data, indices, updates, mode, _Scatter(rows, row, count, place))


def scatter_elements(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int = 0, reduction: str = "update"
) -> te.Tensor:
    axis = int(axis) % len(data.shape)
    if not _is_ours(data, reduction) or _is_few(indices.shape[axis]):
        return _stock_elements(data, indices, updates, axis, reduction)

    def place(ib: IRBuilder, buffer: tir.Buffer, at: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        given, length = in_a_row(ib, buffer)[0], data.shape[axis]
        index = given[at].astype("int64")
        index = tir.if_then_else(index < 0, index + length, index)
        coordinates: list[tir.PrimExpr] = []
        for extent in reversed(indices.shape):
            coordinates.insert(0, tir.truncmod(at, extent))
            at = tir.truncdiv(at, extent)
        coordinates[axis] = index
        row = tir.const(0, "int64")
        for coordinate, extent in zip(coordinates, data.shape):
            row = row * extent + coordinate
        return row, tir.all(index >= 0, index < length)

    what = _Scatter(_product(data.shape), 1, _product(indices.shape), place)
    return _scattered(data, indices, updates, reduction, what)


def _is_ours(data: te.Tensor, mode: str) -> bool:
    return mode == "update" or (mode == "add" and data.dtype in ADDED)


def _is_few(count: IntExpr) -> bool:
    return (known(count) or FEW + 1) <= FEW


def _product(extents: Sequence[Any]) -> IntExpr:
    return reduce(mul, (known(extent) if known(extent) is not None else extent for extent in extents), 1)


def _scattered(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, mode: str, what: _Scatter
) -> te.Tensor:
    is_written = all(known(extent) != 0 for extent in updates.shape)
    replaces, total = mode == "update" and is_written, _wide(what.written) * what.row

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        old, _, new = (in_a_row(ib, buffer)[0] for buffer in ins)
        result, *last = (in_a_row(ib, buffer)[0] for buffer in outs)
        with _each(ib, _wide(what.rows) * what.row) as at:
            result[at] = old[at]
            if replaces:
                with ib.if_scope(at < what.rows):
                    last[0][at] = tir.const(-1, "int32")
        if not is_written:  # an extent of 0 divides nothing
            return ib.get()
        if replaces:
            with _each(ib, _wide(what.written)) as source:
                row, is_inside = what.place(ib, ins[1], source)
                with ib.if_scope(is_inside):
                    ib.emit(atomic("int32", "Max", last[0][row], source.astype("int32")))
        with _each(ib, total) as at:
            source = local(ib, "source", tir.truncdiv(at, what.row))
            row, is_inside = what.place(ib, ins[1], source)
            with ib.if_scope(is_inside):
                row = local(ib, "row", row)
                to = row * what.row + tir.truncmod(at, what.row)
                if not replaces:
                    ib.emit(atomic(data.dtype, "Add", result[to], new[at]))
                else:
                    with ib.if_scope(last[0][row] == source.astype("int32")):
                        result[to] = new[at]
        return ib.get()

    shapes, dtypes = [data.shape], [data.dtype]
    if replaces:  # for each row of the data, the last of those that are written to it
        shapes, dtypes = [*shapes, (what.rows,)], [*dtypes, "int32"]
    results = te.extern(shapes, [data, indices, updates], emit, dtype=dtypes, name="scatter")
    return results[0] if replaces else results


def _wide(count: IntExpr) -> tir.PrimExpr:
    return tir.const(count, "int64") if isinstance(count, int) else count.astype("int64")


@contextmanager
def _each(ib: IRBuilder, count: tir.PrimExpr) -> Iterator[tir.PrimExpr]:
    """A kernel with a thread for each of so many."""
    blocks = te.max(ceil_div(count, THREADS), tir.const(1, "int64")).astype("int32")
    with launch(ib, blocks, THREADS) as (block, thread):
        at = local(ib, "at", block.astype("int64") * THREADS + thread)
        with ib.if_scope(at < count):
            yield at


topi.cuda.scatter_nd, topi.cuda.scatter_elements = scatter_nd, scatter_elements
