"""Padding by widths that are known only at run time."""

from __future__ import annotations

import numpy as np

from tvm import relay


def pad_late(data: relay.Expr, pads: relay.Expr, rank: int, value: relay.Expr, mode: str) -> relay.Expr:
    """Pad by `pads`, an int64 of shape (2, rank): before each axis, and behind; a negative one cuts off."""
    zero = relay.const(0, "int64")
    cut = relay.maximum(zero - pads, zero)
    first, last = (relay.take(cut, relay.const(side), 0) for side in (0, 1))
    end = relay.shape_of(data, "int64") - last
    data = relay.strided_slice(data, first, end, relay.const(np.ones(rank, "int64")))
    return relay.nn.pad(data, relay.transpose(relay.maximum(pads, zero)), value, mode)
