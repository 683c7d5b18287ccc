"""Products of matrices whose sizes, or whose number, are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tvm import relay

from ._fold import keep_known

Sizes = Sequence[Optional[int]]  # None for one that is known only at run time


def late_product(
    left: relay.Expr, right: relay.Expr, of_left: Sizes, of_right: Sizes, dtype: str
) -> relay.Expr:
    """The product of tensors of matrices, of these sizes, whose leading axes broadcast."""
    inner = of_right[-2] if of_left[-1] is None else of_left[-1]
    rank = max(len(of_left), len(of_right))
    left, of_left = _as_factor(left, [*of_left[:-1], inner], of_left, rank)
    right, of_right = _as_factor(right, [*of_right[:-2], inner, of_right[-1]], of_right, rank)
    pairs = list(zip(of_left[:-2], of_right[:-2]))
    sizes = [*map(broadcast_size, pairs), of_left[-2], of_right[-1]]
    rows, columns = _lengths(left, rank - 2, rank - 1), _lengths(right, rank - 1, rank)
    if all(size == 1 for size in of_right[:-2]):  # one matrix for all, so the rows of all are rows of one
        matrix = relay.squeeze(right, list(range(rank - 2))) if rank > 2 else right
        rows_of_all, filters = _merged(left, rank - 1), relay.transpose(matrix)
        if sizes[-1] is None and None not in sizes[:-1]:  # detections are rows rather than filters
            product = relay.nn.dense(filters, rows_of_all, out_dtype=dtype)
            return relay.transpose(relay.reshape(product, [-1, *sizes[:-1]]), [*range(1, rank), 0])
        product = relay.nn.dense(rows_of_all, filters, out_dtype=dtype)
        lead = _lengths(left, 0, rank - 2)
        return split_axes(product, sizes, [lead, rows, columns]) if rank > 2 else product
    of_both = [_lengths(each, 0, rank - 2) for each in (left, right)]
    lead = relay.where(relay.equal(of_both[0], relay.const(1, "int64")), *reversed(of_both))
    if any(mine in (1, None) and its != 1 for mine, its in pairs):
        left = _broadcast(left, lead, of_left)
    if any(its in (1, None) and mine != 1 for mine, its in pairs):
        right = _broadcast(right, lead, of_right)
    factors = [_merged(each, rank - 2) for each in (left, right)]
    product = relay.nn.batch_matmul(*factors, out_dtype=dtype, transpose_b=False)
    return split_axes(product, sizes, [lead, rows, columns]) if rank > 3 else product


def _as_factor(expr: relay.Expr, known: Sizes, sizes: Sizes, rank: int) -> tuple[relay.Expr, Sizes]:
    """A factor of this rank, with the length of the axis summed that the other may tell."""
    added = rank - len(known)
    expr = expr if list(known) == list(sizes) else keep_known(expr, known)
    return (relay.expand_dims(expr, 0, added) if added else expr), [*[1] * added, *known]


def broadcast_size(pair: tuple[int | None, int | None]) -> int | None:
    """The size of an axis of which two tensors have these."""
    mine, its = pair
    return mine if its == 1 or (its is None and mine != 1) else its


def _lengths(expr: relay.Expr, begin: int, end: int) -> relay.Expr:
    return relay.strided_slice(relay.shape_of(expr, "int64"), [begin], [end])


def _broadcast(expr: relay.Expr, lead: relay.Expr, sizes: Sizes) -> relay.Expr:
    rank = len(sizes)
    wide = relay.broadcast_to(expr, relay.concatenate([lead, _lengths(expr, rank - 2, rank)], 0))
    return keep_known(wide, [*[None] * (rank - 2), *sizes[-2:]])


def _merged(expr: relay.Expr, count: int) -> relay.Expr:
    """The first axes as one."""
    for _ in range(count - 1):
        expr = relay.reshape(expr, [-3, -2])
    return expr


def split_axes(product: relay.Expr, sizes: Sizes, lengths: list[relay.Expr]) -> relay.Expr:
    """With the axes that were merged, of these sizes; vectors of their lengths tell what is unknown."""
    if sizes.count(None) <= 1 and 0 not in sizes:
        return relay.reshape(product, [-1 if size is None else size for size in sizes])
    split = relay.reshape(product, relay.concatenate(lengths, 0), allowzero=True)  # 0 is a length, too
    return keep_known(split, sizes)
