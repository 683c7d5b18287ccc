"""RoIAlign for LLVM: regions and vectors of channels in parallel, and for each of these all bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._kernel import most_lanes
from .._tvm import IRBuilder, te, tir
from .kernel import Pooling

# Channels pooled at once. In NCHW each is read from its own plane, and the cache holds lines of few planes.
MAX_LANES = {"NHWC": 64, "NCHW": 16}


def multiscale_roi_align(
    features: Sequence[te.Tensor], rois: te.Tensor, *, layout: str, out_dtype: str, **options: Any
) -> te.Tensor:
    """The result of the operator; `least_areas` of all levels but the first, None if no level is assigned."""
    down, across = options["pooled_size"]
    by_position = options["by_position"]  # then the bins of a channel read different channels
    channels = int(features[0].shape[layout.index("C")]) // (down * across if by_position else 1)
    lanes = most_lanes(channels, 1 if by_position else MAX_LANES[layout])
    shape = [{"N": rois.shape[0], "C": channels, "H": down, "W": across}[axis] for axis in layout]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        pooling = Pooling(
            ib,
            ins[:-1],
            ins[-1],
            outs[0],
            {"layout": layout, **options},
            lanes=lanes,
            lanes_of_sum=lanes,
            scope="global",
            loop=lambda _: "serial",
        )
        vectors = channels // lanes
        with ib.for_range(0, rois.shape[0] * vectors, "task", kind="parallel") as task:
            row, vector = tir.truncdiv(task, vectors), tir.truncmod(task, vectors)
            with ib.for_range(0, down, "p") as p, ib.for_range(0, across, "q") as q:
                pooling.emit_bin(row, p, q, vector)
        return ib.get()

    return te.extern([shape], [*features, rois], emit, dtype=[out_dtype], name="roi_align")
