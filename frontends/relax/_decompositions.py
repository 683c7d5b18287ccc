"""Writes operators of torch by others where TVM's importer would compute something else.

torch traces what is written here, so types and shapes are its own. A function that returns `NotImplemented`
keeps the call as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._pytree import tree_map

from ..errors import ImportFailure

aten = torch.ops.aten
Call = Callable[..., Any]


# TVM reduces no scalar along an axis, sorts none, and fails at one that is written to.
ALONG_AN_AXIS = (
    *(aten.amax.default, aten.amin.default, aten.argmax.default, aten.argmin.default, aten.max.dim),
    *(aten.cumprod.default, aten.cumsum.default, aten.mean.dim, aten.prod.dim_int, aten.sum.dim_IntList),
    *(aten._log_softmax.default, aten._softmax.default, aten.any.dim, aten.min.dim, aten.var.correction),
    *(aten.flip.default, aten.kthvalue.default, aten.median.dim, aten.sort.default, aten.topk.default),
    *(aten.scatter.src, aten.scatter.value, aten.scatter_add.default),
)


def decompositions() -> dict[Any, Call]:
    """By operator, what writes it by others."""
    written = _of_tensors()
    return {**written, **{each: _of_scalars(each, written.get(each)) for each in ALONG_AN_AXIS}}


def _of_tensors() -> dict[Any, Call]:
    return {
        **torch.export.default_decompositions(),  # type: ignore[attr-defined]  # the checker has an older torch
        **get_decompositions([aten.elu.default, aten.embedding.default]),
        # TVM ignores `alpha`, the type of a sum of products, and does not add or compare masks.
        aten.add.Tensor: _add,
        aten.addmm.default: _add_product,
        aten.baddbmm.default: _add_product,
        aten.eq.Tensor: _eq,
        aten.mul.Tensor: _mul,
        aten.ne.Tensor: _ne,
        aten.sub.Tensor: _sub,
        # It gives a number the type of the tensor: an integer's missing bound is infinity.
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp_by_tensors,
        aten.div.Tensor_mode: _div,
        aten.fmax.default: lambda x, y: _unless_nan(torch.maximum(x, y), x, y),
        aten.fmin.default: lambda x, y: _unless_nan(torch.minimum(x, y), x, y),
        aten.maximum.default: partial(_of_masks, torch.logical_or),  # TVM has no extremes of masks,
        aten.minimum.default: partial(_of_masks, torch.logical_and),
        aten.neg.default: lambda x: 0 - x if x.dtype == torch.uint8 else NotImplemented,  # and no -1 in bytes
        aten.sign.default: lambda x: (x != 0).to(x.dtype) if x.dtype == torch.uint8 else NotImplemented,
        aten.pow.Scalar: _pow,
        aten.pow.Tensor_Tensor: _pow,
        aten.pow.Tensor_Scalar: _pow_number,
        # It has no converter for these, and its sorts are stable.
        aten.min.dim: lambda x, axis, keepdim=False: (x.amin(axis, keepdim), x.argmin(axis, keepdim)),
        aten.remainder.Scalar_Tensor: lambda x, y: _number(x, y).remainder(y),
        aten.sort.stable: lambda x, *, stable, dim=-1, descending=False: torch.sort(x, dim, descending),
        aten.__lshift__.Scalar: lambda x, by: x * 2**by,
        aten.__rshift__.Scalar: lambda x, by: x // 2**by,
        aten.any.default: lambda x: aten.any.dim(x.reshape(-1), 0),
        aten.any.dim: _any,
        aten.any.dims: _any,
        aten.erfc.default: lambda x: 1 - x.erf(),
        aten.exp2.default: lambda x: 2**x,
        aten.kthvalue.default: _kthvalue,
        aten.native_group_norm.default: _group_norm,
        aten.prod.dim_int: _prod,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.unfold.default: _unfold,
        aten.var_mean.correction: _var_mean,
        # It takes as many values as there are indices, and no number.
        aten.scatter.src: lambda x, axis, index, source: _of_as_many(aten.scatter, x, axis, index, source),
        aten.scatter.value: _scatter_number,
        aten.scatter_add.default: lambda *arguments: _of_as_many(aten.scatter_add, *arguments),
        aten.scatter_reduce.two: _scatter_reduce,
        aten.index_put.default: _index_put,
        # It reads an end before the start, and no stride, which is that of the window, as they are.
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.slice.Tensor: _slice,
        # It leaves types as they are.
        aten.cat.default: _cat,
        aten.cumprod.default: partial(_cumulated, torch.cumprod),
        aten.cumsum.default: partial(_cumulated, torch.cumsum),
        torch.ops.prims.convert_element_type.default: Tensor.to,
        # It reads in front of the tensor, and in a kernel of its own: slices are fused.
        aten.select.int: _select,
        aten.take.default: _take,
        # It gives the new values to whoever reads the old ones.
        aten.copy.default: _copy,
        # It ignores the divisor.
        aten.avg_pool2d.default: partial(_avg_pool, aten.avg_pool2d),
        aten.avg_pool3d.default: partial(_avg_pool, aten.avg_pool3d),
        # It samples elsewhere.
        aten.upsample_nearest2d.vec: _upsample_nearest,
        aten.upsample_bilinear2d.vec: _upsample_bilinear,
    }


def _of_scalars(operator: Any, otherwise: Call | None) -> Call:
    """A scalar is a row of one element."""

    def as_row(each: Any) -> Any:
        return each.reshape(1) if isinstance(each, Tensor) and each.dim() == 0 else each

    def written(x: Tensor, *arguments: Any, **options: Any) -> Any:
        if x.dim() == 0:
            found = operator(*map(as_row, (x, *arguments)), **options)
            return tree_map(lambda each: each.reshape(()), found)
        return otherwise(x, *arguments, **options) if otherwise else NotImplemented

    return written


def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    if _are_masks(x, other):
        return torch.logical_or(x, other)
    return NotImplemented if alpha == 1 else x + other * alpha


def _sub(x: Any, other: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else x - other * alpha


def _add_product(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = torch.matmul(left, right)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (x if beta == 1 else x * beta)


def _mul(x: Any, other: Any) -> Any:
    return torch.logical_and(x, other) if _are_masks(x, other) else NotImplemented


def _eq(x: Any, other: Any) -> Any:
    return ~torch.logical_xor(x, other) if _are_masks(x, other) else NotImplemented


def _ne(x: Any, other: Any) -> Any:
    return torch.logical_xor(x, other) if _are_masks(x, other) else NotImplemented


def _are_masks(*values: Any) -> bool:
    return all(isinstance(each, Tensor) and each.dtype == torch.bool for each in values)


def _clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    if x.dtype.is_floating_point:
        return NotImplemented
    if low is not None:
        x = torch.where(x < low, low, x)
    return x if high is None else torch.where(x > high, high, x)


def _clamp_by_tensors(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _div(x: Any, divisor: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return x / divisor
    if isinstance(divisor, Tensor):
        return NotImplemented
    return torch.div(x, _number(divisor, x), rounding_mode=rounding_mode)


def _number(number: float, beside: Tensor) -> Tensor:
    """As a tensor of the type in which it is computed with one."""
    return torch.full((), number, dtype=torch.result_type(beside, number), device=beside.device)


def _unless_nan(extreme: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, extreme))


def _of_masks(by: Call, x: Tensor, y: Tensor) -> Any:
    return by(x, y) if x.dtype == y.dtype == torch.bool else NotImplemented


def _pow(base: Any, exponent: Tensor) -> Any:
    if torch.result_type(base, exponent).is_floating_point:
        return NotImplemented
    raise ImportFailure("Relax has no equivalent of a power of integers: make one of them floating point")


def _pow_number(x: Tensor, exponent: float) -> Any:
    """Roots are torch's own: `pow` makes infinity of -inf, and forgets the sign of -0."""
    if exponent not in (0.5, -0.5):
        return NotImplemented
    x = x.to(torch.result_type(x, exponent))
    return x.sqrt() if exponent > 0 else x.rsqrt()


def _cat(tensors: Sequence[Tensor], axis: int = 0) -> Any:
    dtype = reduce(torch.promote_types, [each.dtype for each in tensors])
    if all(each.dtype == dtype for each in tensors):
        return NotImplemented
    return torch.cat([each.to(dtype) for each in tensors], axis)


def _cumulated(cumulate: Call, x: Tensor, axis: int, *, dtype: torch.dtype | None = None) -> Any:
    dtype = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    return NotImplemented if x.dtype == dtype else cumulate(x.to(dtype), axis)


def _prod(x: Tensor, axis: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dtype = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    return NotImplemented if x.dtype == dtype else x.to(dtype).prod(axis, keepdim)


def _any(x: Tensor, *arguments: Any) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    found = x.bool().any(*arguments)
    return found.to(x.dtype) if x.dtype == torch.uint8 else found  # as in torch


def _group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *arguments: Any) -> Any:
    if weight is not None and bias is not None:
        return NotImplemented
    weight = x.new_ones(x.shape[1]) if weight is None else weight
    bias = x.new_zeros(x.shape[1]) if bias is None else bias
    return aten.native_group_norm(x, weight, bias, *arguments)


def _var_mean(x: Tensor, axis: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    correction = 1 if correction is None else correction
    axis = list(range(x.dim())) if axis is None else axis
    return x.var(axis, correction=correction, keepdim=keepdim), x.mean(axis, keepdim)


def _kthvalue(x: Tensor, k: int, axis: int = -1, keepdim: bool = False) -> Any:
    found = (each.narrow(axis, k - 1, 1) for each in torch.sort(x, axis))
    return tuple(each if keepdim else each.squeeze(axis) for each in found)


def _rrelu(x: Tensor, noise: Tensor, low: float, high: float, training: bool = False, _: Any = None) -> Any:
    slope = (low + high) / 2
    return NotImplemented if training else (torch.nn.functional.leaky_relu(x, slope), noise)


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Any:
    axis %= x.dim()
    starts = torch.arange(0, x.shape[axis] - size + 1, step)
    places = starts[:, None] + torch.arange(size)
    return x.index_select(axis, places.reshape(-1)).unflatten(axis, places.shape).movedim(axis + 1, -1)


def _of_as_many(scatter: Any, x: Tensor, axis: int, index: Tensor, source: Tensor) -> Any:
    if source.shape == index.shape:
        return NotImplemented
    for at, extent in enumerate(index.shape):
        source = source.narrow(at, 0, extent)
    return scatter(x, axis, index, source)


def _scatter_number(x: Tensor, axis: int, index: Tensor, number: float) -> Any:
    return x.scatter(axis, index, torch.full(index.shape, number, dtype=x.dtype))


def _scatter_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if reduce != "sum":
        return NotImplemented
    return (x if include_self else x.scatter(axis, index, 0)).scatter_add(axis, index, source)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """By `where` if a mask says where the same values are written."""
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


def _max_pool(x: Tensor, size: Sequence[int], stride: Sequence[int] = (), *arguments: Any) -> Any:
    return NotImplemented if stride else aten.max_pool2d_with_indices(x, size, size, *arguments)


def _slice(x: Tensor, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    first, last, _ = slice(start, end, step).indices(x.shape[axis])
    return NotImplemented if first <= last else aten.slice(x, axis, first, first)


def _select(x: Tensor, axis: int, index: int) -> Any:
    return x.narrow(axis, index % x.shape[axis], 1).squeeze(axis)


def _take(x: Tensor, index: Tensor) -> Any:
    return x.reshape(-1)[index]


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    return source.to(x.dtype).expand(x.shape).clone()


def _avg_pool(pool: Call, x: Tensor, size: Sequence[int], *arguments: Any) -> Any:
    if len(arguments) < 5 or arguments[4] is None:
        return NotImplemented
    stride, padding, is_ceil, _, divisor = arguments
    if is_ceil:
        raise ImportFailure("Relax has no equivalent of avg_pool with a divisor_override and ceil_mode")
    return pool(x, size, stride, padding, False, True) * (math.prod(size) / divisor)


def _upsample_nearest(x: Tensor, size: Sequence[int] | None, factors: Sequence[float] | None = None) -> Any:
    """TVM takes the pixel whose centre is nearest, torch the one before: the same at powers of two."""
    ratios = factors or [extent / before for extent, before in zip(size or (), x.shape[2:])]
    if all(ratio >= 1 and math.frexp(ratio)[0] == 0.5 for ratio in ratios):
        return NotImplemented
    return _of_torch(aten.upsample_nearest2d.vec)(x, size, factors)


def _upsample_bilinear(
    x: Tensor, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None = None
) -> Any:
    """TVM's factors are those of the extents, torch's those that it is given.

    TVM cuts integers off, and takes places in float32.
    """
    extents = [factor * before for factor, before in zip(factors or (), x.shape[2:])]
    after = [*(extents if factors else size or ())]
    if after == [*x.shape[2:]]:
        return x.clone()
    is_same = align_corners or all(extent == int(extent) for extent in extents)
    is_single = align_corners and min(after) < 2  # pixel, of which TVM divides by 0
    if is_same and not is_single and x.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return NotImplemented
    return _bilinear(x, size, align_corners, factors)


def _bilinear(x: Tensor, *arguments: Any) -> Tensor:
    """Its positions are in float32 where pixels have fewer bits."""
    exact = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    return _of_torch(aten.upsample_bilinear2d.vec)(exact, *arguments).to(x.dtype)


def _of_torch(operator: Any) -> Call:
    return get_decompositions([operator])[operator]
