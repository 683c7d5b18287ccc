"""The task of the kernels of an NMS on CUDA: its extents, its buffers, and the keys of its boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._kernel import local
from .._tvm import IRBuilder, dtype_of, te, tir
from .._types import IntExpr
from ..sort import class_then_score
from .cuda_block import LAST, SuppressShape


class View:
    """A buffer as `view[row, ...]`, also where it has no axis for the batch."""

    def __init__(self, ib: IRBuilder, buffer: tir.Buffer) -> None:
        self._buffer, self._rank = ib.buffer_ptr(buffer), len(buffer.shape)
        self.buffer, self.dtype = buffer, buffer.dtype

    def __getitem__(self, place: IntExpr | tuple[IntExpr, ...]) -> tir.PrimExpr:
        return self._buffer[self._own(place)]

    def __setitem__(self, place: IntExpr | tuple[IntExpr, ...], value: tir.PrimExpr) -> None:
        self._buffer[self._own(place)] = value.astype(self.dtype)

    def _own(self, place: IntExpr | tuple[IntExpr, ...]) -> tuple[IntExpr, ...]:
        place = place if isinstance(place, tuple) else (place,)
        return place[len(place) - self._rank :]


@dataclass(frozen=True)
class Problem:
    """The task: extents as int or computed on the host, and `views` of all buffers by name."""

    ib: IRBuilder
    rows: IntExpr
    length: IntExpr
    limit: int | None
    views: dict[str, Any]
    shape: SuppressShape

    @property
    def extent(self) -> IntExpr:
        """The number of indices of a row that a kernel has to initialize."""
        return _maximum(self.length if self.limit is None else _maximum(self.length, self.limit), 1)

    @staticmethod
    def is_nothing(extent: IntExpr | None) -> bool:
        return isinstance(extent, int) and extent == 0

    def key(self, row: tir.PrimExpr, index: tir.PrimExpr) -> tir.PrimExpr:
        """The key of the first sort; boxes that do not take part come last."""
        views = self.views
        score = local(self.ib, "score", views["scores"][row, index].astype("float32"))
        class_bits, _ = split_id(self.ib, views["class_ids"][row, index])
        key = class_then_score(class_bits, score)
        takes_part = []
        if "valid_count" in views:
            takes_part.append(index < views["valid_count"][row])
        if "score_threshold" in views:
            takes_part.append(score > views["score_threshold"][()])
        return tir.Select(tir.all(*takes_part), key, tir.const(LAST, "int64")) if takes_part else key


def split_id(ib: IRBuilder, class_id: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr | None]:
    """The 32 bits of a class id in the sort key, and the rest; together they identify the id."""
    if dtype_of(class_id) == "int32":
        return class_id, None
    class_id = local(ib, "class_id", class_id)
    low = local(ib, "low", class_id.astype("int32"))
    rest = local(ib, "rest", (class_id >> 32).astype("int32") - (low >> 31))  # 0 if the id is an int32
    return low ^ (rest * tir.const(0x1E3779B1, "int32")), rest


def _maximum(a: IntExpr, b: IntExpr) -> IntExpr:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else te.max(a, b)
