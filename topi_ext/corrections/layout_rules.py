"""Keep the meaning of operators where TVM's passes change the layout of their data.

TVM's rules for layouts convert what does not compile in the new one, or then computes something else:

- The channels of NCHW8c, which convolutions on CPUs get, cannot be squeezed, sorted or split as one axis.
- Those for reductions forget `exclude`, number the elements of several axes in their new order, and take the
  mean that a variance gets for a tensor of the data's shape.
- Pooling along one axis calls it W, and to TVM no layout with W can be made of the NCH that is left of an
  image.

Here, such operators keep the layout that they are written in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relay
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from .._strategy import ABOVE_STOCK

NEED_WHOLE_AXES = "split", "squeeze", "topk"
REDUCTIONS = "all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "variance"
POOLS = "max_pool1d", "avg_pool1d", "adaptive_max_pool1d", "adaptive_avg_pool1d"
POSITIONS = "argmax", "argmin"

Layouts = Sequence[tvm.tir.data_layout.Layout]  # of the arguments
Types = Sequence[relay.Type]
Rule = Callable[[tvm.ir.Attrs, Any, Layouts, Types], InferCorrectLayoutOutput]


def of_whole_axes(
    name: str, stock: Rule, attrs: tvm.ir.Attrs, new: Any, old: Layouts, types: Types
) -> InferCorrectLayoutOutput:
    shape = types[0].shape
    axes = [axis % max(len(shape), 1) for axis in _axes(name, attrs, shape)]
    if name == "squeeze":  # which mishandles negative axes
        attrs = tvm.ir.make_node("relay.attrs.SqueezeAttrs", axis=axes)
    known = new and old and len(old[0]) == len(shape)
    if known and any(old[0].name[axis].lower() in new[0].name for axis in axes):  # some are in blocks
        new = old
    inferred = stock(attrs, new, old, types)
    if getattr(attrs, "ret_type", "both") != "both":  # of the two results that TVM has a layout for, one
        first = inferred.output_layouts[:1]
        return InferCorrectLayoutOutput(inferred.input_layouts, first, inferred.new_attrs)
    return inferred


def _axes(name: str, attrs: tvm.ir.Attrs, shape: Sequence[Any]) -> list[int]:
    if name != "squeeze":
        return [int(attrs.axis)]
    if attrs.axis is not None:
        return [int(axis) for axis in attrs.axis]
    return [axis for axis, extent in enumerate(shape) if isinstance(extent, tvm.tir.IntImm) and extent == 1]


def of_reduction(
    name: str, stock: Rule, attrs: tvm.ir.Attrs, new: Any, old: Layouts, types: Types
) -> InferCorrectLayoutOutput:
    numbers_several = name in POSITIONS and (attrs.axis is None or len(attrs.axis) != 1)
    of_blocks = name == "variance" and new and new[0] and not new[0].name.isupper()
    if attrs.exclude or numbers_several or of_blocks:
        return InferCorrectLayoutOutput([None] * len(types), [None], attrs)
    return stock(attrs, new, old, types)


for _names, _rule in ((NEED_WHOLE_AXES, of_whole_axes), (REDUCTIONS, of_reduction)):
    for _name in _names:
        _stock = relay.op.get(_name).get_attr("FInferCorrectLayout")
        if _stock is not None:  # as "any" has none: it stays where it is anyway
            _changed = functools.partial(_rule, _name, _stock)
            relay.op.get(_name).set_attr("FInferCorrectLayout", _changed, ABOVE_STOCK)
for _name in POOLS:
    relay.op.get(f"nn.{_name}").reset_attr("FInferCorrectLayout")
