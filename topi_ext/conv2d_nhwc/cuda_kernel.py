"""The CUDA kernel of a convolution: an implicit matrix product on tensor cores, phase by phase.

`plan` decides how the convolution is divided into tiles, and which of two schedules loads what, and when. A
block of threads computes all its tiles in the same way:

1. Set up (`cuda_block.Block`, `cuda_multiply.Product`). Each thread finds its team, its warp and its lane,
   and where its operands begin. Bias, slopes and scales go to shared memory (`Output.fill_tables`).
2. Load pixels (`cuda_pixels.load_pixels`) and weights (`cuda_weights`), by asynchronous copies (`cuda_copy`).
   Result: a slot with the pixels that the tile sees, halo included, and a slot of weights. Where channels or
   filters end or the padding begins, there are zeros, so no later phase has a special case for these.
3. Multiply (`cuda_multiply.Product`), by mma or wgmma. A tap of the kernel is only a different offset in the
   slot of pixels. Result: in registers, the sums of the tile's pixels and the block's filters.
4. Write (`cuda_write.Output`). Result: in global memory, the sums after scale, bias, activation, residual,
   final activation and rounding, at the positions that depth to space gives them.

The schedules repeat 2 to 4 and overlap them; each says what its barriers are for:

- `cuda_resident`: all weights are loaded once. Each team of a block has its own tile, so the teams are in
  different phases at the same time.
- `cuda_streaming`: pixels and weights of one tile are loaded in steps, some steps ahead of the product.

Conventions
-----------
- Pixels, unless they are output pixels, are those of the data. y and x count from the first pixel of an
  image.
- A column is a filter, counted within the block, in its position as a column of the product.
- A tap is a position in the kernel, `row * kernel width + column`.
- A piece is 16 bytes of shared memory, eight values along the reduction or sixteen of int8; a plane is one
  piece for each pixel of a slot; a half is one tap and one plane, so one piece of the reduction. Instructions
  take two halves at once.
- Offsets are in bytes of shared memory if they go to `Block.shared`, in pieces in a `Plan` and in a `Pair`.

Bounds and termination
----------------------
- In global memory, the index of what does not exist is replaced by 0 before it is read, and results that do
  not exist are not written. Indices fit into an int32, since the operator refuses tensors of 2 ** 31
  elements.
- In shared memory, all offsets are below `plan.shared_memory`: loads and products stay within their slot.
- All loops have a number of turns that is known when they begin. No block waits for another.
"""

from __future__ import annotations

from .._kernel import launch
from .._tvm import IRBuilder, tir
from .cuda_block import Block
from .cuda_copy import Copies
from .cuda_multiply import Product
from .cuda_resident import emit_resident
from .cuda_streaming import emit_streaming
from .cuda_write import Output
from .plan import Plan


def emit_kernel(plan: Plan, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    """The kernel for a plan.

    `buffers` are "data", "weight" and "result", and of "bias", "residual", "slope" and "scale" those that the
    problem has.
    """
    ib = IRBuilder()
    with launch(ib, plan.blocks, plan.threads) as (number, thread):
        block = Block(ib, plan, buffers, number, thread)
        product = Product(block)
        output = Output(block, product)
        emit_schedule = emit_resident if plan.resident else emit_streaming
        emit_schedule(block, Copies(block), product, output)
    return ib.get()
