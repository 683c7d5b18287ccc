"""Deformable attention on CUDA: a thread takes one query for a vector of channels.

Neighbouring threads take the next channels of the same query, so what they read of a pixel is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._kernel import ceil_div, launch, local, most_lanes
from .._tvm import IRBuilder, dtype_of, te, tir
from .kernel import Attention, Level

THREADS = 128
MAX_LANES = 4  # TVM has no code for vectors of more float32


def deformable_attention(
    value: te.Tensor, points: te.Tensor, weights: te.Tensor, *, levels: Sequence[Level], align_corners: bool
) -> te.Tensor:
    """The result of `topi_ext.deformable_attention`."""
    items, queries = points.shape[:2]
    channels = int(value.shape[2])
    lanes = most_lanes(channels, MAX_LANES)
    vectors = channels // lanes

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        attention = Attention(
            ib, ins, outs[0], levels, align_corners, lanes=lanes, scope="local", loop="unroll"
        )
        blocks = te.max(ceil_div(queries * vectors, THREADS), 1)  # of an item
        with (
            ib.if_scope(tir.const(0, "int32") < items * blocks),
            launch(ib, items * blocks, THREADS) as (block, thread),
        ):
            item = local(ib, "item", tir.truncdiv(block, blocks))
            place = local(ib, "place", tir.truncmod(block, blocks) * THREADS + thread)
            with ib.if_scope(place < queries * vectors):
                query = local(ib, "query", tir.truncdiv(place, vectors))
                attention.emit(item, query, local(ib, "vector", tir.truncmod(place, vectors)))
        return ib.get()

    shape = [items, queries, value.shape[2]]
    return te.extern(
        [shape], [value, points, weights], emit, dtype=[dtype_of(value)], name="deformable_attention"
    )
