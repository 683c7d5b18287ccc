"""A kernel for `relax.nn.pixel_shuffle`: TVM 0.27 looks for its own where it is not."""

from __future__ import annotations

import tvm
from tvm import relax, te

from .legalize import legalize


def _shuffled(data: te.Tensor, block: int) -> te.Tensor:
    *batch, channels, height, width = data.shape

    def compute(*places: tvm.ir.Expr) -> tvm.ir.Expr:
        *others, channel, y, x = places
        deep = (channel * block + y % block) * block + x % block
        return data(*others, deep, y // block, x // block)

    shape = (*batch, channels // block**2, height * block, width * block)
    return te.compute(shape, compute, name="pixel_shuffle", tag="injective")


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(_shuffled, call.args[0], int(call.attrs.upscale_factor))


legalize("nn.pixel_shuffle", _legalize)
