"""Pooling of regions for LLVM: regions and channels in parallel, and for each of these all bins."""

from __future__ import annotations

from collections.abc import Sequence

from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import Options, Pooling


def roi_pool(data: te.Tensor, rois: te.Tensor, options: Options) -> te.Tensor:
    """The result of the operator."""
    channels = int(data.shape[1]) // options.channels_of_each
    down, across = options.pooled_size

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        pooling = Pooling(ib, ins, outs[0], options, "global")
        with ib.for_range(0, rois.shape[0] * channels, "task", kind="parallel") as task:
            row, channel = tir.truncdiv(task, channels), tir.truncmod(task, channels)
            with ib.for_range(0, down, "p") as p, ib.for_range(0, across, "q") as q:
                pooling.emit(row, channel, p, q)
        return ib.get()

    shape = [rois.shape[0], channels, down, across]
    return te.extern([shape], [data, rois], emit, dtype=[dtype_of(data)], name="roi_pool")
