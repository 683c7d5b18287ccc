"""Sorting on CUDA by a merge sort, and selections that do not sort the rest, there and on CPUs.

`emit_sort` sorts the keys that a function computes, such as the composite ones of `class_then_score`, and
carries a payload along. `emit_selection` finds the first keys of long rows; `heap` does on CPUs.
`topi_ext.corrections.sort` puts them in the place of TVM's own.
"""

from .merge_sort import Buffers, emit_sort
from .order import Order, class_then_score, ordered_bits
from .rows import Rows
from .select import Plan, emit_selection, plan_selection

__all__ = [
    "Buffers",
    "Order",
    "Plan",
    "Rows",
    "class_then_score",
    "emit_selection",
    "emit_sort",
    "ordered_bits",
    "plan_selection",
]
