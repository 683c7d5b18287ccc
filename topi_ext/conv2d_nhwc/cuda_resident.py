"""The schedule of plans whose weights stay in shared memory: load them once, then go from tile to tile.

All threads of the block load the weights. After that, the teams are independent of each other: each has its
own slot of pixels and takes every `plan.workers`-th tile. While one team waits for its pixels or writes its
result, the tensor cores work for the others. In a round, a team:

1. waits until the pixels of its tile are in its slot;
2. multiplies all taps and planes of the tile;
3. starts copying the pixels of its next tile into the slot;
4. writes the result, while these copies are on their way.

Synchronization
---------------
There is a barrier between a write to shared memory and each read or write of the same bytes by another
thread. The barriers at the end of 1 and 2 are for the threads of a team:

    memory             written in             read in   barrier before reading   barrier before writing again
    slot of weights    before the rounds      2         before the rounds        (written once)
    slot of the team   before the rounds, 3   2         at the end of 1          at the end of 2
    tables             before the rounds      4         before the rounds        (written once)

If slots are cleared first, there is another barrier after that. Each thread waits for its own copies before
the barrier, see `cuda_copy`. wgmma is done before the barrier at the end of 2, since `Product.end` waits for
it.

All threads of the block reach the first barriers, and all threads of a team the team's. All teams run the
same number of rounds, since nvcc serializes wgmma in a loop whose length seems to differ between threads. In
a round whose tile does not exist, a team multiplies what is in its slot, and writes nothing.
"""

from __future__ import annotations

from .._kernel import barrier, local
from .._tvm import tir
from .cuda_block import Block
from .cuda_copy import Copies
from .cuda_multiply import Product
from .cuda_pixels import load_pixels
from .cuda_weights import load_all_weights
from .cuda_write import Output


def emit_resident(block: Block, copies: Copies, product: Product, output: Output) -> None:
    """Emit the schedule."""
    ib, plan = block.ib, block.plan
    _clear_slots(block)
    load_all_weights(copies)
    first = local(ib, "first_tile", block.number * plan.teams + block.team)
    _load_tile(copies, first)
    output.fill_tables()
    copies.wait()
    barrier(ib)
    with ib.for_range(0, -(-plan.all_tiles // plan.workers), "round") as turn:
        number = local(ib, "tile", first + turn * plan.workers)
        residual = None
        if plan.is_async and block.problem.residual:  # mma needs the registers for its operands
            residual = output.load_residual(output.pixels(number), range(plan.groups))
        copies.wait()  # 1
        _team_barrier(block)
        product.start()  # 2
        product.begin()
        data = block.uniform("data_at", block.team * block.data_bytes)
        product.multiply_all(data, tir.const(block.weights_at))
        product.end()
        _team_barrier(block)
        _load_tile(copies, number + plan.workers)  # 3
        output.write(output.pixels(number), residual)  # 4


def _clear_slots(block: Block) -> None:
    """Set slots to 0 that have bytes that are multiplied but that no copy writes.

    These are the rest of a last piece, planes and halves that only make the number of halves even, and the
    weights of joined groups for each other's channels.
    """
    plan = block.plan
    has_rest = plan.channels % plan.per_piece or plan.all_planes * plan.per_piece > plan.channels
    if has_rest or plan.joined > 1:
        first = 0 if has_rest else block.weights_at
        block.zero(first, block.weights_at + block.weight_bytes - first)
        barrier(block.ib)


def _load_tile(copies: Copies, number: tir.PrimExpr) -> None:
    """Start copying the pixels of a tile, if it exists, into the slot of the team."""
    block = copies.block
    with block.ib.if_scope(number < block.plan.all_tiles):
        load_pixels(copies, block.tile(number), block.team, 0)
    copies.commit()


def _team_barrier(block: Block) -> None:
    """Wait for all threads of the team; barrier 0 is that of the block."""
    if block.plan.teams == 1:
        barrier(block.ib)
    else:
        block.call(f"team_barrier<{block.plan.team_threads}>", block.team + 1)
