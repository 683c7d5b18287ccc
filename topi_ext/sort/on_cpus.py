"""The first elements of rows on CPUs: TVM's `topk` sorts whole rows, or looks at one element after the other.

Rows of known, great length are searched in vectors instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._register import known
from .._tvm import IRBuilder, dtype_of, te, tir
from .._types import IntExpr
from . import heap, of_any_type
from .order import Order
from .rows import Rows


def topk(
    data: te.Tensor,
    k: IntExpr | te.Tensor = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int64",
) -> list[te.Tensor] | te.Tensor:
    order = Order(dtype_of(data), is_ascend)
    if not (order.has_rank and _is_long(data, k, axis)):
        return of_any_type.topk(data, k, axis, ret_type, is_ascend, dtype)
    types = {"both": [dtype_of(data), dtype], "values": [dtype_of(data)], "indices": [dtype]}[ret_type]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        results = [Rows(ib, buffer) for buffer in outs]
        values = None if ret_type == "indices" else results[0]
        indices = None if ret_type == "values" else results[-1]
        heap.emit_first(ib, Rows(ib, ins[0]), order, int(k), values, indices)
        return ib.get()

    shape = (*data.shape[:-1], int(k))
    return te.extern([shape] * len(types), [data], emit, dtype=types, name="topk_cpu", tag="topk_cpu")


def _is_long(data: te.Tensor, k: Any, axis: int) -> bool:
    length = known(data.shape[-1])
    is_last = axis % len(data.shape) == len(data.shape) - 1
    return bool(is_last and length and length >= heap.LONG and 1 <= (known(k) or 0) <= length)
