"""Sort a few keys by counting: the place of a key is the number of keys before it.

A warp counts for one key, and its block has all keys of the row in shared memory. That is quadratic work, but
the whole GPU shares it, where a sort of so few keys has one block and a chain of merges. What belongs to a
key goes straight to its place, in the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from .._floats import Locals
from .._kernel import barrier, ceil_div, launch, local, variables
from .._tvm import IRBuilder, te, tir
from .._types import IntExpr
from .._warp import sum_of_lanes

THREADS = 512  # more read the keys in fewer rounds, and share the GPU among fewer blocks
WARP = 32
# Up to these, it is counted; tests and benchmarks set others.
MAX_KEYS = 6144  # in a row: 48 KiB of int64, which a block has on all GPUs
MAX_KEYS_OF_ALL = 8192  # in all rows


def are_few(rows: IntExpr, length: IntExpr) -> bool | tir.PrimExpr:
    """Whether to count for rows of this length; an expression if the length is known only at run time."""
    if isinstance(rows, int) and isinstance(length, int):
        return length <= MAX_KEYS and rows * length <= MAX_KEYS_OF_ALL
    if isinstance(length, int) and length > MAX_KEYS:
        return False
    # As a quotient: a product may be more than an int32 holds.
    return tir.all(length <= MAX_KEYS, rows <= tir.truncdiv(MAX_KEYS_OF_ALL, te.max(length, 1)))


def emit_ranks(
    ib: IRBuilder,
    rows: IntExpr,
    length: IntExpr,
    dtype: str,
    read_key: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr],
    place: Callable[..., None],
    visit: Callable[[tir.PrimExpr, tir.PrimExpr], None] | None = None,
    extent: IntExpr | None = None,
    number: Callable[[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr], tir.PrimExpr] | None = None,
) -> None:
    """Emit a kernel that finds the place of each key of each row, in ascending order; ties keep theirs.

    Where only the kernel knows how many keys there are, up to `length`, `number(row, part, thread)` says so,
    in all threads of each block of the row, which have their numbers as `part`.

    `place(row, index, lane, key, rank)` is called in all lanes of a warp for the key that was at the index.
    Before that, `visit(row, index)` is called in one thread for each index below the extent, if there is one.
    """
    extent = length if extent is None else extent
    blocks = ceil_div(extent, THREADS // WARP)
    with launch(ib, rows * blocks, THREADS) as (block, thread):
        row = local(ib, "row", tir.truncdiv(block, blocks))
        part = local(ib, "part", tir.truncmod(block, blocks))
        held = ceil_div(max(length, 1) if isinstance(length, int) else MAX_KEYS, WARP) * WARP
        first = part * (THREADS // WARP)
        if number is not None:  # nothing to do for a block without keys
            of_row = number(row, part, thread)
            length = local(ib, "length", tir.Select(first < of_row, of_row, 0))
        index = local(ib, "index", first + tir.truncdiv(thread, WARP))
        lane = local(ib, "lane", tir.truncmod(thread, WARP))
        keys = ib.allocate(dtype, (held,), name="keys_of_row", scope="shared")
        with ib.for_range(0, ceil_div(length, THREADS), "load") as load:
            at = local(ib, "at", load * THREADS + thread)
            with ib.if_scope(at < length):
                keys[at] = read_key(row, at)
        # Up to the end of a warp's last keys there are some that come before none.
        end = local(ib, "end", length + thread)
        with ib.if_scope((thread < WARP) & (end < ceil_div(length, WARP) * WARP)):
            keys[end] = tir.max_value(dtype)
        barrier(ib)
        if visit is not None:
            with ib.if_scope((lane == 0) & (index < extent)):
                visit(row, index)
        with ib.if_scope(index < length):  # the same in all lanes of a warp
            own = local(ib, "own", keys[index])
            (before,) = variables(ib, "int32", "before")
            before[0] = tir.const(0)
            own_word = local(ib, "own_word", tir.truncdiv(index, WARP))
            words = ceil_div(length, WARP)

            def count(word: tir.PrimExpr, is_before: Callable[..., tir.PrimExpr]) -> None:
                at = local(ib, "at", word * WARP + lane)
                key = local(ib, "key", keys[at])
                before[0] = before[0] + is_before(key, at).astype("int32")

            # Of equal keys those come first that are before this one; only in its own word this takes a test.
            with ib.for_range(0, own_word, "word") as word:
                count(word, lambda key, _: key <= own)
            count(own_word, lambda key, at: (key < own) | ((key == own) & (at < index)))
            with ib.for_range(0, words - own_word - 1, "word") as word:
                count(own_word + 1 + word, lambda key, _: key < own)
            place(row, index, lane, own, sum_of_lanes(Locals(ib, "local"), before[0]))
