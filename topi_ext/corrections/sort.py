"""Sorting on CUDA: argsort, sort, topk and all that TVM builds on them, as NMS and unique; topk on CPUs.

TVM's own kernels hang the GPU: their attribute `hand_threaded` is outside the thread extents, so the pass
that inserts barriers overlooks it and inserts some into divergent branches. They also launch one block in
gridDim.y per row, which fails above 65,535 rows. All of TVM's sorting on CUDA goes through two functions of
`tvm.topi.cuda.sort`; here they are replaced by the merge sort of `topi_ext.sort`, and `topk` by its
selection.

On CPUs, sorting is that of `sort.of_any_type`, and `topk` that of `sort.on_cpus`. Other targets are
unchanged.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry

from .._strategy import generic
from .._target import is_for_cuda
from .._types import IntExpr
from ..sort import cuda, of_any_type, on_cpus

# The attribute `tvm.topi.cuda.sort` is the function of that name, not the module.
_stock: Any = importlib.import_module("tvm.topi.cuda.sort")
stock_sort_ir, stock_sort_by_key_ir, stock_topk = _stock.sort_ir, _stock.sort_by_key_ir, _stock.topk


def _sort_ir(*args: Any, **kwargs: Any) -> tir.Stmt:
    return (cuda.sort_ir if is_for_cuda() else stock_sort_ir)(*args, **kwargs)


def _sort_by_key_ir(*args: Any, **kwargs: Any) -> tir.Stmt:
    return (cuda.sort_by_key_ir if is_for_cuda() else stock_sort_by_key_ir)(*args, **kwargs)


def _topk(
    data: te.Tensor,
    k: IntExpr | te.Tensor = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int64",
) -> list[te.Tensor] | te.Tensor:
    k = int(k) if isinstance(k, tir.IntImm) else k
    if is_for_cuda() and isinstance(k, int) and k > 0:
        return cuda.topk(data, k, axis, ret_type, is_ascend, dtype)
    return stock_topk(data, k, axis, ret_type, is_ascend, dtype)


_stock.sort_ir, _stock.sort_by_key_ir = _sort_ir, _sort_by_key_ir
_stock.topk = tvm.topi.cuda.topk = _topk


# --- CPUs

topi.sort, topi.argsort, topi.topk = of_any_type.sort, of_any_type.argsort, of_any_type.topk
_unique: Any = importlib.import_module("tvm.topi.unique")
_unique.sort, _unique.argsort = topi.sort, topi.argsort


def _by(name: str, compute: Callable[..., list[te.Tensor]], schedule: Callable[..., te.Schedule]) -> Any:
    def strategy(
        _attrs: tvm.ir.Attrs, _inputs: list[te.Tensor], _type: relay.Type, _target: tvm.target.Target
    ) -> registry.OpStrategy:
        result = registry.OpStrategy()
        result.add_implementation(compute, generic.wrap_topi_schedule(schedule), name=f"{name}.cpu")
        return result

    return strategy


generic.topk_strategy.register("cpu", override=True)(
    _by("topk", generic.wrap_compute_topk(on_cpus.topk), topi.generic.schedule_topk)
)
generic.argsort_strategy.register("cpu", override=True)(
    _by("argsort", generic.wrap_compute_argsort(topi.argsort), topi.generic.schedule_argsort)
)
generic.sort_strategy.register("cpu", override=True)(
    _by("sort", generic.wrap_compute_sort(topi.sort), topi.generic.schedule_sort)
)
