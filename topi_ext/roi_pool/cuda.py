"""Pooling of regions on CUDA: a thread for each element of the result."""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import ceil_div, launch, local
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import Options, Pooling

THREADS = 128


def roi_pool(data: te.Tensor, rois: te.Tensor, options: Options) -> te.Tensor:
    """The result of the operator."""
    channels = int(data.shape[1]) // options.channels_of_each
    down, across = options.pooled_size
    rows, elements = rois.shape[0], channels * options.bins  # of a region
    blocks = ceil_div(elements, THREADS)

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        pooling = Pooling(ib, ins, outs[0], options, "local")
        with ib.if_scope(tir.const(0, "int32") < rows), launch(ib, rows * blocks, THREADS) as (block, thread):
            row = local(ib, "row", tir.truncdiv(block, blocks))
            place = local(ib, "place", tir.truncmod(block, blocks) * THREADS + thread)
            with ib.if_scope(place < elements):
                bin_ = local(ib, "bin", tir.truncmod(place, options.bins))
                channel = local(ib, "channel", tir.truncdiv(place, options.bins))
                pooling.emit(row, channel, tir.truncdiv(bin_, across), tir.truncmod(bin_, across))
        return ib.get()

    shape = [rows, channels, down, across]
    return te.extern([shape], [data, rois], emit, dtype=[dtype_of(data)], name="roi_pool")
