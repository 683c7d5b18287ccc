"""RoIAlign on CUDA: each thread pools one bin for a vector of channels, independently of all others.

In NHWC the threads of a warp go along the channels, and each accesses 16 contiguous bytes: coordinates are
computed for so many channels at once. In NCHW they go along the bins of a channel, whose writes are
contiguous and whose reads are close together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._int8 import INT8, float_of_byte
from .._kernel import bytes_of, ceil_div, launch, local, most_lanes
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import Pooling

THREADS = 128
MAX_BYTES = 16  # that a thread reads at once
MAX_LANES_OF_SUM = 4  # TVM has no code for vectors of more float32


def multiscale_roi_align(
    features: Sequence[te.Tensor], rois: te.Tensor, *, layout: str, out_dtype: str, **options: Any
) -> te.Tensor:
    """The result of the operator; `least_areas` of all levels but the first, None if no level is assigned."""
    down, across = options["pooled_size"]
    by_position = options["by_position"]  # then the bins of a channel read different channels
    channels = int(features[0].shape[layout.index("C")]) // (down * across if by_position else 1)
    dtype = dtype_of(features[0])
    lanes = most_lanes(channels, MAX_BYTES // bytes_of(dtype) if layout == "NHWC" and not by_position else 1)
    in_words = dtype == INT8 and lanes % 4 == 0
    rows = rois.shape[0]
    shape = [{"N": rows, "C": channels, "H": down, "W": across}[axis] for axis in layout]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        pooling = Pooling(
            ib,
            ins[:-1],
            ins[-1],
            outs[0],
            {"layout": layout, **options},
            lanes=lanes,
            lanes_of_sum=1 if in_words else min(lanes, MAX_LANES_OF_SUM),
            scope="local",
            loop=lambda length: "unroll" if isinstance(length, int) else "serial",
            float_of_byte=float_of_byte if in_words else None,
        )
        # The position of a bin in a region, the fastest axis last.
        axes = [("C", channels // lanes), ("H", down), ("W", across)]
        axes = axes if layout == "NCHW" else axes[1:] + axes[:1]
        bins = down * across * (channels // lanes)
        blocks = ceil_div(bins, THREADS)
        with ib.if_scope(tir.const(0, "int32") < rows), launch(ib, rows * blocks, THREADS) as (block, thread):
            row = local(ib, "row", tir.truncdiv(block, blocks))
            place = local(ib, "place", tir.truncmod(block, blocks) * THREADS + thread)
            with ib.if_scope(place < bins):
                at = {}
                for axis, length in reversed(axes):
                    at[axis] = local(ib, f"at_{axis}".lower(), tir.truncmod(place, length))
                    place = tir.truncdiv(place, length)
                pooling.emit_bin(row, at["H"], at["W"], at["C"])
        return ib.get()

    return te.extern([shape], [*features, rois], emit, dtype=[out_dtype], name="roi_align")
