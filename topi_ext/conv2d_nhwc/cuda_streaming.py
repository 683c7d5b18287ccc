"""The schedule of plans whose weights do not stay in shared memory: load pixels and weights step by step.

A block has one team here, and takes every `plan.workers`-th tile. The reduction of a tile has `plan.chunks`
chunks of `plan.steps` steps:

- If pixels are loaded once for all taps, a chunk is some planes of the pixels, halo included, and a step is
  one tap. Weights are loaded for each step, pixels for each chunk.
- Else (`plan.by_taps`, or a kernel of one tap) a chunk has one step, and both are loaded for each.

In each step, the block:

1. waits until what the step multiplies is in shared memory, and all warps are done with older slots;
2. starts the copies for the step `plan.ahead` steps later;
3. if steps are taps, and this is the second tap of a chunk, starts copying the pixels of the next chunk;
4. multiplies.

After the last step of a tile it starts the copies for the first steps of the next tile, and writes the result
while these are on their way.

Slots
-----

    memory    number of slots   slot                copies are started
    weights   ahead + 2         step % (ahead + 2)  `ahead` steps before
    pixels    ahead + 2         the same            the same, if a chunk has one step
    pixels    2                 chunk % 2           else, in the second step of the chunk before

Synchronization
---------------
Each step has one barrier, at the end of 1, which all threads reach.

Before the barrier, a thread waits for its copies. Each step closes one group of copies, even if it is empty,
and the first `ahead` groups are closed before the first step. So when all but the last `ahead - 1` are
complete, those for this step are. The group with the pixels of a chunk is closed `steps - 1` steps before its
first step; so where steps are taps, `ahead` is at most `steps - 1`, which `choose_plan` ensures.

After the barrier of step s, no thread reads the slots of step s - 2 any more: mma of step s - 1 is done, and
of wgmma only that of step s - 1 may still run; its thread waits for it in step s. The copies of 2 go to the
slot of step s - 2, since (s + ahead) % (ahead + 2) = (s - 2) % (ahead + 2). Those of 3 go to the slot of the
chunk before this one, whose last step is s - 2 in the second step of a chunk.

Between two tiles is another barrier, after all wgmma is complete, so all slots are free. The tables are
written before the first barrier, and read after the last step.
"""

from __future__ import annotations

from .._kernel import barrier, local
from .._tvm import tir
from .._types import IntExpr
from .cuda_block import Block, Tile
from .cuda_copy import Copies
from .cuda_multiply import Product
from .cuda_pixels import load_pixels, offset_of_tap
from .cuda_weights import load_weights_of_step
from .cuda_write import Output


def emit_streaming(block: Block, copies: Copies, product: Product, output: Output) -> None:
    """Emit the schedule."""
    ib, plan = block.ib, block.plan
    output.fill_tables()
    _load_first_steps(copies, block.number)
    rounds = tir.truncdiv(plan.all_tiles - 1 - block.number, plan.workers) + 1
    with ib.for_range(0, rounds, "round") as turn:
        number = local(ib, "tile", block.number + turn * plan.workers)
        _multiply_all_steps(copies, product, block.tile(number))
        if plan.workers < plan.all_tiles:
            barrier(ib)  # the slots are free
            _load_first_steps(copies, number + plan.workers)
        output.write(output.pixels(number))


def _load_first_steps(copies: Copies, number: tir.PrimExpr) -> None:
    """Start the copies for the first `ahead` steps of a tile, if it exists; each closes a group."""
    block, plan = copies.block, copies.plan
    with block.ib.if_scope(number < plan.all_tiles):
        tile = block.tile(number)
        for step in range(plan.ahead):
            if step < plan.chunks * plan.steps:
                _load_step(copies, tile, tir.const(step), step // plan.steps, step % plan.steps)
            if step == 0 and plan.steps > 1:
                load_pixels(copies, tile, 0, tir.const(0))
            copies.commit()


def _load_step(copies: Copies, tile: Tile, step: tir.PrimExpr, chunk: IntExpr, tap: IntExpr) -> None:
    """Start copying the weights of a step, and its pixels if a chunk has one step."""
    plan = copies.plan
    slot = tir.truncmod(step, plan.weight_slots)
    load_weights_of_step(copies, chunk, tap, slot)
    if plan.steps == 1:
        load_pixels(copies, tile, slot, chunk)


def _multiply_all_steps(copies: Copies, product: Product, tile: Tile) -> None:
    """The sums of a tile, whose first steps are being copied already."""
    block, plan, ib = copies.block, copies.plan, copies.block.ib
    total = plan.chunks * plan.steps
    product.start()
    with ib.for_range(0, plan.chunks, "chunk") as chunk, ib.for_range(0, plan.steps, "tap") as tap:
        step = local(ib, "step", chunk * plan.steps + tap)
        copies.wait(plan.ahead - 1)  # 1
        barrier(ib)
        later = local(ib, "later", step + plan.ahead)
        with ib.if_scope(later < total):  # 2
            _load_step(copies, tile, later, tir.truncdiv(later, plan.steps), tir.truncmod(later, plan.steps))
        if plan.steps > 1:  # 3
            with ib.if_scope((tap == 1) & (chunk + 1 < plan.chunks)):
                load_pixels(copies, tile, tir.truncmod(chunk + 1, 2), chunk + 1)
        copies.commit()
        weight_slot = tir.truncmod(step, plan.weight_slots)  # 4
        data_slot = tir.truncmod(chunk, 2) if plan.steps > 1 else weight_slot
        data = local(ib, "data_at", data_slot * block.data_bytes)
        if plan.steps > 1:
            data = local(ib, "data_of_tap", data + offset_of_tap(block, tap))
        weights = local(ib, "weights_of_tap", block.weights_at + weight_slot * block.weight_bytes)
        product.begin()
        product.multiply(data, weights, product.pairs_of_planes())
        product.end(still_running=1)
    product.finish()
