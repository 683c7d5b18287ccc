"""Averages of windows of float16, which TVM sums in float16: on CPUs, with a sum in float32, as in torch.

Large windows are widened before, as `in_float32` has it; of small ones, that would be a kernel of its own. On
CUDA, `pooling` adds eight neighbouring channels at once, for which they stay float16.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import te, tir

from .._strategy import Compute, compute_by, generic, stock_compute, with_body
from .._target import is_for_cuda


def _avg_pool(stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (pooled,) = stock(attrs, inputs, type_)
    if pooled.dtype != "float16" or is_for_cuda():
        return [pooled]
    (quotient,) = pooled.op.body
    total = _summed(quotient.a.producer)
    average = total[tuple(quotient.a.indices)] / quotient.b.astype(total.dtype)
    return [with_body(pooled, average.astype(pooled.dtype))]


def _summed(total: te.Tensor) -> te.Tensor:
    (stock,) = total.op.body
    one, other = (tir.Var(name, "float32") for name in ("one", "other"))
    reducer = tir.CommReducer([one], [other], [one + other], [tir.const(0, "float32")])
    wide = [element.astype("float32") for element in stock.source]
    return with_body(total, tir.Reduce(reducer, wide, stock.axis, stock.condition, stock.value_index))


for _rank in (1, 2, 3):
    _name = f"nn.avg_pool{_rank}d"
    compute_by(_name, functools.partial(_avg_pool, stock_compute(_name)), generic.schedule_pool)
