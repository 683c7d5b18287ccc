"""The operators of Relay, for what is written for both TVMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relay


class OfRelay:
    """See `_deform_conv2d.Operators`."""

    add, multiply = staticmethod(relay.add), staticmethod(relay.multiply)
    reshape, transpose = staticmethod(relay.reshape), staticmethod(relay.transpose)
    dense, batch_matmul = staticmethod(relay.nn.dense), staticmethod(relay.nn.batch_matmul)

    def constant(self, array: Any) -> relay.Expr:
        return relay.const(array, "float32")

    def ones(self, shape: Sequence[int]) -> relay.Expr:
        return relay.ones(shape, "float32")

    def in_float32(self, data: relay.Expr) -> relay.Expr:
        return relay.cast(data, "float32")

    def reversed(self, data: relay.Expr) -> relay.Expr:
        return relay.reverse(data, -1)
