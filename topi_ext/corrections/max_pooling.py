"""Maxima of windows without finite numbers, and of windows with NaN.

TVM's poolings start from the lowest finite number, and pad with it: the maximum of a window of minus
infinities is -3.4e38. Whether they find a NaN depends on where it is. Importing this module makes them start
from minus infinity, and makes NaN the maximum of its window, as for torch.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tvm import te, tir, topi

from .._bounds import greatest
from .._strategy import Compute, compute_by, generic, stock_compute, with_body
from .._target import is_for_cuda

SCHEDULES = {
    **{f"nn.max_pool{rank}d": generic.schedule_pool for rank in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{rank}d": generic.schedule_adaptive_pool for rank in (1, 2, 3)},
    "nn.global_max_pool2d": generic.schedule_adaptive_pool,
}


def _max_pool(stock: Compute, attrs: Any, inputs: list[te.Tensor], type_: Any) -> list[te.Tensor]:
    (pooled,) = stock(attrs, inputs, type_)
    dtype = pooled.dtype
    if "float" not in dtype:
        return [pooled]
    is_widened = dtype == "float16" and not is_for_cuda()  # once: LLVM has no vectors of it to compare
    held = "float32" if is_widened else dtype
    (stock_maximum,) = pooled.op.body
    (element,) = stock_maximum.source
    padded = _padded_with_infinity(element)
    reducer = _reducer(held, is_padded=not padded.same_as(element))
    maximum = tir.Reduce(
        reducer, [padded.astype(held)], stock_maximum.axis, stock_maximum.condition, stock_maximum.value_index
    )
    result = with_body(pooled, maximum)
    if is_widened:
        result = te.compute(result.shape, lambda *at: result(*at).astype(dtype), "narrow", topi.tag.ELEMWISE)
    return [result]


def _reducer(dtype: str, is_padded: bool) -> tir.CommReducer:
    one, other = (tir.Var(name, dtype) for name in ("one", "other"))
    if is_padded and dtype != "bfloat16":  # whose variables TVM does not compile
        once = tir.Var("once", dtype)  # for each use it would be found out again whether it is padding
        maximum = tir.Let(once, other, greatest(one, once))
    else:
        maximum = greatest(one, other)
    return tir.CommReducer([one], [other], [maximum], [tir.const(-math.inf, dtype)])


def _padded_with_infinity(element: tir.ProducerLoad) -> tir.ProducerLoad:
    padded = element.producer
    if not isinstance(padded.op, te.ComputeOp) or padded.op.name != "pad_temp":
        return element
    (body,) = padded.op.body
    is_inside, inside, _ = body.args
    body = tir.if_then_else(is_inside, inside, tir.const(-math.inf, padded.dtype))
    return tir.ProducerLoad(with_body(padded, body), element.indices)


for _name, _schedule in SCHEDULES.items():
    compute_by(_name, functools.partial(_max_pool, stock_compute(_name)), _schedule)
