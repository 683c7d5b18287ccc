"""Keep the meaning of reductions where TVM's passes change the layout of their data.

TVM's rules forget `exclude`, number the elements of several axes in their new order, and take the mean that
a variance gets for a tensor of the data's shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relay
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from .._strategy import ABOVE_STOCK

REDUCTIONS = "all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "variance"
POSITIONS = "argmax", "argmin"
Layouts = Sequence[tvm.tir.data_layout.Layout]


def _register(name: str) -> None:
    stock = relay.op.get(name).get_attr("FInferCorrectLayout")
    if stock is None:  # as "any" has none: it stays where it is anyway
        return

    def infer(
        attrs: tvm.ir.Attrs,
        new_in_layouts: Layouts | None,
        old_in_layouts: Layouts,
        old_in_types: Sequence[relay.Type],
    ) -> InferCorrectLayoutOutput:
        numbers_several = name in POSITIONS and (attrs.axis is None or len(attrs.axis) != 1)
        of_split = name == "variance" and _is_split(new_in_layouts)
        if attrs.exclude or numbers_several or of_split:  # it stays in the layout that it is written in
            return InferCorrectLayoutOutput([None] * len(old_in_types), [None], attrs)
        return stock(attrs, new_in_layouts, old_in_layouts, old_in_types)

    relay.op.get(name).set_attr("FInferCorrectLayout", infer, ABOVE_STOCK)


def _is_split(layouts: Layouts | None) -> bool:
    """Whether an axis of the first operand becomes two, such as the channels in NCHW4c."""
    return layouts is not None and bool(layouts[0]) and not layouts[0].name.isupper()


for _name in REDUCTIONS:
    _register(_name)
