"""Sorting on CUDA: argsort, sort, topk and all that TVM builds on them, NMS and unique included.

TVM's own kernels hang the GPU: their attribute `hand_threaded` stands outside the thread extents, so the
pass that inserts barriers overlooks it and puts some into divergent branches. They also launch one
gridDim.y per row, which fails above 65,535 rows. All of TVM's sorting on CUDA goes through two
functions of `tvm.topi.cuda.sort`; importing this package puts a merge sort in their place. Other targets
keep what they have.
"""

import importlib

import tvm

from . import cuda
from .merge_sort import PingPong, emit_sort
from .order import Order, class_then_score, ordered_bits

# The attribute `tvm.topi.cuda.sort` is the function of that name, not the module.
_stock = importlib.import_module("tvm.topi.cuda.sort")
stock_sort_ir, stock_sort_by_key_ir = _stock.sort_ir, _stock.sort_by_key_ir


def _on_cuda(ours, stock):
    def sort_for_target(*args, **kwargs):
        kind = tvm.target.Target.current(allow_none=False).kind.name
        return (ours if kind == "cuda" else stock)(*args, **kwargs)

    return sort_for_target


_stock.sort_ir = _on_cuda(cuda.sort_ir, stock_sort_ir)
_stock.sort_by_key_ir = _on_cuda(cuda.sort_by_key_ir, stock_sort_by_key_ir)

__all__ = [
    "Order",
    "PingPong",
    "class_then_score",
    "emit_sort",
    "ordered_bits",
    "stock_sort_by_key_ir",
    "stock_sort_ir",
]
