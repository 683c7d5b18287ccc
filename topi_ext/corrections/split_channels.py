"""Keep operators that need a whole axis off the blocked layouts that TVM gives convolutions on CPUs.

The channels of NCHW8c cannot be squeezed, sorted or split as one axis. TVM's own layout rules convert such
operators all the same, and the result does not compile. Importing this module gives them the original layout.
So it does for pooling along one axis, which calls it W: to TVM no layout with W can be made of the NCH that
is left of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relay
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from .._strategy import ABOVE_STOCK


def _squeezed(attrs: Any, shape: list[Any]) -> list[int]:
    if attrs.axis is not None:
        return [int(axis) for axis in attrs.axis]
    return [axis for axis, extent in enumerate(shape) if isinstance(extent, tvm.tir.IntImm) and extent == 1]


def _one(attrs: Any, _shape: list[Any]) -> list[int]:
    return [int(attrs.axis)]


def _keep_whole(name: str, axes_of: Callable[[Any, list[Any]], list[int]]) -> None:
    stock = tvm.ir.Op.get(name).get_attr("FInferCorrectLayout")

    def infer(attrs: Any, new: Any, old: Any, types: list[relay.Type]) -> Any:
        shape = types[0].shape
        axes = [axis % max(len(shape), 1) for axis in axes_of(attrs, shape)]
        if name == "squeeze":  # which mishandles negative axes
            attrs = tvm.ir.make_node("relay.attrs.SqueezeAttrs", axis=axes)
        known = new and old and len(old[0]) == len(shape)
        if known and any(old[0].name[axis].lower() in new[0].name for axis in axes):
            new = old
        inferred = stock(attrs, new, old, types)
        if getattr(attrs, "ret_type", "both") != "both":  # of the two results that TVM has a layout for, one
            first = inferred.output_layouts[:1]
            return InferCorrectLayoutOutput(inferred.input_layouts, first, inferred.new_attrs)
        return inferred

    tvm.ir.register_op_attr(name, "FInferCorrectLayout", infer, ABOVE_STOCK)


for name, axes_of in {"squeeze": _squeezed, "split": _one, "topk": _one}.items():
    _keep_whole(name, axes_of)
for pool in "max_pool1d", "avg_pool1d", "adaptive_max_pool1d", "adaptive_avg_pool1d":
    tvm.ir.Op.get(f"nn.{pool}").reset_attr("FInferCorrectLayout")
