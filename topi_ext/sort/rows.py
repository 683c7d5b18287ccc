"""A buffer as rows along an axis."""

from __future__ import annotations

from functools import reduce
from operator import mul

from .._tvm import IRBuilder, tir
from .._types import IntExpr


class Rows:
    """A buffer as rows along an axis: `rows[row, index]`, the other axes making up the row's number."""

    def __init__(self, ib: IRBuilder, buffer: tir.Buffer, axis: int = -1) -> None:
        self._buffer = ib.buffer_ptr(buffer)
        self._axis = axis % len(buffer.shape)
        self._others = [*buffer.shape[: self._axis], *buffer.shape[self._axis + 1 :]]
        self.dtype = buffer.dtype
        self.length = buffer.shape[self._axis]
        self.count = reduce(mul, self._others, tir.const(1, "int32"))

    def __getitem__(self, at: tuple[IntExpr, IntExpr]) -> tir.PrimExpr:
        return self._buffer[self._place(*at)]

    def __setitem__(self, at: tuple[IntExpr, IntExpr], value: tir.PrimExpr) -> None:
        self._buffer[self._place(*at)] = value

    def _place(self, row: IntExpr, index: IntExpr) -> list[IntExpr]:
        place: list[IntExpr] = []
        for extent in reversed(self._others[1:]):
            place.insert(0, tir.truncmod(row, extent))
            row = tir.truncdiv(row, extent)
        if self._others:
            place.insert(0, row)
        return [*place[: self._axis], index, *place[self._axis :]]
