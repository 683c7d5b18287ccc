"""Writes operators of torch that read or write at places by others, as `_decompositions`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Call = Callable[..., Any]


def decompositions() -> dict[Any, Call]:
    """By operator, what writes it by others."""
    return {
        # TVM takes an index without axes for one that leaves none.
        aten.gather.default: _gather,
        aten.index_select.default: _index_select,
        # It has no converter for these.
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.index_reduce.default: _index_reduce,
        aten.masked_scatter.default: _masked_scatter,
        aten.put.default: _put,
        aten.searchsorted.Scalar: _searchsorted,
        aten.searchsorted.Tensor: _searchsorted,
        aten.unfold.default: _unfold,
        # Its search puts NaN in front.
        aten.bucketize.Tensor: lambda x, bounds, **options: _searchsorted(bounds, x, **options),
        # It takes as many values as there are indices, and no number.
        aten.scatter.src: lambda x, axis, index, source: _of_as_many(aten.scatter, x, axis, index, source),
        aten.scatter.value: _scatter_number,
        aten.scatter.reduce: _scatter_reduced,
        aten.scatter_add.default: _scatter_add,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.index_put.default: _index_put,
        # It reads an end before the start as it is.
        aten.slice.Tensor: _slice,
        aten.slice_scatter.default: _slice_scatter,
        # It reads in front of the tensor, and in a kernel of its own: slices are fused.
        aten.select.int: _select,
        aten.take.default: _take,
        # It gives the new values to whoever reads the old ones.
        aten.copy.default: _copy,
    }


def _gather(x: Tensor, axis: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    return NotImplemented if index.dim() else x.gather(axis, index.reshape(1)).reshape(())


def _index_select(x: Tensor, axis: int, index: Tensor) -> Any:
    return NotImplemented if index.dim() else x.index_select(axis, index.reshape(1))


def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, first: int = 0, second: int = 1) -> Tensor:
    along = torch.arange(source.shape[-1], device=x.device)
    moved = x.movedim((first, second), (0, 1))
    changed = moved.index_put((along + max(-offset, 0), along + max(offset, 0)), source.movedim(-1, 0))
    return changed.movedim((0, 1), (first, second))


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of the source in their order; torch fails where they are fewer than the places."""
    x, mask = torch.broadcast_tensors(x, mask)
    before = mask.reshape(-1).cumsum(0).reshape(mask.shape)
    return torch.where(mask, source.reshape(-1).index_select(0, (before - 1).reshape(-1)).reshape(x.shape), x)


def _put(x: Tensor, index: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    changed = x.reshape(-1).index_put((index.reshape(-1),), values.reshape(-1), accumulate)
    return changed.reshape(x.shape)


def _searchsorted(
    sorted: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many are below, which NaN is not."""
    if not isinstance(values, Tensor):
        values = torch.full((), values, dtype=torch.result_type(sorted, values), device=sorted.device)
    if sorter is not None:
        sorted = sorted.gather(-1, sorter)
    sorted, values = (sorted if sorted.dim() == 1 else sorted[..., None, :]), values[..., None]
    is_right = right or side == "right"
    is_above = sorted > values if is_right else sorted >= values
    return (~is_above).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _of_as_many(scatter: Any, x: Tensor, axis: int, index: Tensor, source: Tensor, *options: Any) -> Any:
    if source.shape == index.shape:
        return NotImplemented
    for at, extent in enumerate(index.shape):
        source = source.narrow(at, 0, extent)
    return scatter(x, axis, index, source, *options)


def _scatter_add(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Any:
    if x.dtype == torch.bool:  # of which TVM has no sums
        return x.int().scatter_add(axis, index, source.int()) > 0
    return _of_as_many(aten.scatter_add, x, axis, index, source)


def _scatter_number(x: Tensor, axis: int, index: Tensor, number: float) -> Any:
    return x.scatter(axis, index, torch.full(index.shape, number, dtype=x.dtype))


def _scatter_reduced(x: Tensor, axis: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    if reduce == "add":
        return x.scatter_add(axis, index, source)
    return x.scatter_reduce(axis, index, source, "prod")


def _scatter_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """What is left are products and extremes with the elements that are there."""
    if x.dtype == torch.bool:
        by_bytes = x.byte().scatter_reduce(axis, index, source.byte(), reduce, include_self=include_self)
        return by_bytes > 0
    if reduce == "mean":
        ones = torch.ones_like(x)
        total, count = (
            each.scatter_reduce(axis, index, added, "sum", include_self=include_self)
            for each, added in ((x, source), (ones, ones.new_ones(source.shape)))
        )
        return total / count if x.dtype.is_floating_point else torch.div(total, count, rounding_mode="floor")
    if not include_self:
        neutral = x.scatter(axis, index, _neutral(reduce, x.dtype))
        return neutral.scatter_reduce(axis, index, source, reduce)
    if reduce == "sum":
        return x.scatter_add(axis, index, source)
    return _of_as_many(aten.scatter_reduce, x, axis, index, source, reduce)


def _index_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = [-1 if at == axis % x.dim() else 1 for at in range(x.dim())]
    places = index.long().reshape(shape).expand(source.shape)
    return x.scatter_reduce(axis, places, source, reduce, include_self=include_self)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """What a reduction begins with."""
    if reduce in ("sum", "prod"):
        return float(reduce == "prod")
    if dtype.is_floating_point:
        return math.inf if reduce == "amin" else -math.inf
    return torch.iinfo(dtype).max if reduce == "amin" else torch.iinfo(dtype).min


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """By `where` if a mask says where the same values are written."""
    if accumulate and x.dtype == torch.bool:  # of which TVM has no sums
        return aten.index_put(x.int(), indices, values.int(), True) > 0
    given = [index for index in indices if index is not None]
    if len(given) != 1 or given[0].dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    (mask,), front = given, len(indices) - 1
    behind = x.dim() - front - mask.dim()
    if values.numel() > 1 and (front or values.dim() > behind):
        return NotImplemented
    values = values if values.numel() > 1 else values.reshape(())
    mask = mask.bool().reshape(*[1] * front, *mask.shape, *[1] * behind)
    return torch.where(mask, x + values if accumulate else values, x)


def _slice(x: Tensor, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Counted from the front where the size is open."""
    extent = x.shape[axis]
    if isinstance(extent, int) and all(each is None or isinstance(each, int) for each in (start, end)):
        first, last, _ = slice(start, end, step).indices(extent)
        return NotImplemented if first <= last else aten.slice(x, axis, first, first)
    first, last = _places(start, end, extent)
    return NotImplemented if (first, last) == (start, end) else aten.slice(x, axis, first, last, step)


def _slice_scatter(
    x: Tensor, source: Tensor, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """By reading where nothing is written, since TVM writes slices of known places only."""
    extent = x.shape[axis]
    if all(each is None or isinstance(each, int) for each in (extent, start, end)):
        return NotImplemented
    first, last = _places(start, end, extent)
    if (first, last, step) == (0, extent, 1):
        return source.expand(x.shape).clone()
    shape = [-1 if at == axis % x.dim() else 1 for at in range(x.dim())]
    at = torch.arange(extent)
    is_written = (at >= first) & (at < last) & ((at - first) % step == 0)
    last_read = torch.scalar_tensor(source.shape[axis] - 1, dtype=at.dtype)
    read = ((at - first) // step).clamp(min=0).minimum(last_read)
    return torch.where(is_written.reshape(shape), source.index_select(axis, read), x)


def _places(start: Any, end: Any, extent: Any) -> tuple[Any, Any]:
    return _place(0 if start is None else start, extent), _place(extent if end is None else end, extent)


def _place(at: Any, extent: Any) -> Any:
    """Of a bound; torch asks the same of sizes."""
    if isinstance(at, int) and at == sys.maxsize:
        return extent
    at = at + extent if at < 0 else at
    return extent if at > extent else at


def _select(x: Tensor, axis: int, index: int) -> Any:
    return x.narrow(axis, index if index >= 0 else index + x.shape[axis], 1).squeeze(axis)


def _take(x: Tensor, index: Tensor) -> Any:
    return aten.index.Tensor(x.reshape(-1), [index])


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    return source.to(x.dtype).expand(x.shape).clone()


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Any:
    axis %= x.dim()
    starts = torch.arange(0, x.shape[axis] - size + 1, step)
    places = starts[:, None] + torch.arange(size)
    return x.index_select(axis, places.reshape(-1)).unflatten(axis, places.shape).movedim(axis + 1, -1)
