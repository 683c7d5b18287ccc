"""A call of `topi_ext.conv2d_nhwc_in_place` that rules can read, change and rebuild."""

from __future__ import annotations

from typing import Any, NamedTuple

from topi_ext.conv2d_nhwc_in_place import conv2d_nhwc_in_place
from topi_ext.conv2d_nhwc_in_place.op import NAME

from tvm import relay

from ..analysis.convolution import channels_cut
from ..engine.expressions import op_name, static_shape
from .fused_call import FusedCall

NAMES = "topi_ext.conv2d_nhwc", NAME  # of the calls that can become one


class InPlaceCall(FusedCall):
    """The arguments of a call of `conv2d_nhwc_in_place`, or of `conv2d_nhwc`, by name, to be changed."""

    def __init__(self, call: relay.Call) -> None:
        super().__init__(call)
        is_in_place = op_name(call) == NAME
        self.data_from, self.residual_from, self.result_from = (
            int(call.attrs[name]) if is_in_place else 0
            for name in ("data_from", "residual_from", "result_from")
        )
        self.result_channels = int(call.checked_type.shape[3])
        self.destination = call.args[-1] if is_in_place and call.attrs["has_destination"] else None

    def call(self) -> relay.Call:
        return conv2d_nhwc_in_place(**vars(self))


def why_not_in_place(conv: relay.Call) -> str | None:
    """Why a convolution on a GPU cannot read and write some channels of wider tensors; None if it can."""
    if static_shape(conv) is None:
        return "the batch is dynamic"
    if all(isinstance(arg, relay.Constant) for arg in conv.args):
        return "the convolution is of constants, which TVM folds"
    if int(conv.attrs["groups"]) > 1:
        return "the convolution is grouped"
    if int(conv.attrs["block_size"]) > 1:
        return "the filters are shuffled into pixels"
    return None


class Sliced(NamedTuple):
    """A convolution from whose result channels are cut, and the first of them."""

    whole: relay.Call
    first: int


def sliced_convolution(value: Any) -> Sliced | None:
    """The convolution of whose result a value is some neighbouring channels; None if there is no slice."""
    first, node = 0, value
    while (cut := channels_cut(node)) is not None:
        first, node = first + cut[0], node.args[0]
    return Sliced(node, first) if node is not value and op_name(node) in NAMES else None
