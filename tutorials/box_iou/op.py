"""The Relay operator `tutorials.box_iou`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, no_type_check

from topi_ext.authoring import kernels_in, known, refuse, register

import tvm
from tvm import relay
from tvm.te.hybrid import script

if TYPE_CHECKING:
    from tvm.te.hybrid.runtime import output_tensor

NAME = "tutorials.box_iou"
ARGUMENTS = {"boxes": "(N, 4), float32.", "others": "(M, 4), float32."}


def box_iou(boxes: relay.Expr, others: relay.Expr) -> relay.Call:
    """How much each box overlaps each of the others: the intersection's area, divided by the union's.

    Parameters
    ----------
    boxes, others : relay.Expr
        (N, 4) and (M, 4), float32. N and M may be 0, and known only at run time.

    Returns
    -------
    iou : relay.Expr
        (N, M), float32.

    Convention
    ----------
    - Corners are x1, y1, x2, y2; width is x2 - x1, without any 1 added.
    - Boxes that do not overlap have an IoU of 0, also two without area, where torchvision's has NaN.
    """
    return relay.Call(relay.op.get(NAME), [boxes, others], tvm.ir.make_node("DictAttrs"))


def _type_relation(types: Sequence[relay.Type], _attrs: tvm.ir.Attrs) -> relay.TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, relay.TensorType) for type_ in types):
        return None
    for name, type_ in zip(ARGUMENTS, types):
        if type_.dtype != "float32":
            refuse(NAME, f"{name} must be of type float32, not {type_.dtype}")
        if len(type_.shape) != 2 or known(type_.shape[1]) != 4:
            refuse(NAME, f"{name} must have the shape (N, 4), not {type_.shape}")
    return relay.TensorType([type_.shape[0] for type_ in types], "float32")


@script
@no_type_check
def _shapes(boxes, others):
    """The shape of the result from those of the arguments, for the virtual machine."""
    shape = output_tensor((2,), "int64")
    shape[0] = boxes[0]
    shape[1] = others[0]
    return shape


register(
    NAME,
    "How much each box overlaps each of the others.",
    ARGUMENTS,
    _type_relation,
    lambda _attrs, inputs, _outputs: [_shapes(*inputs)],
    kernels_in(__package__),
    lambda kernels, _attrs, inputs: [kernels.box_iou(*inputs)],
)
