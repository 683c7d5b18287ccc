"""Operators that look along axes: sums, maxima, softmax, the best k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm import relax

from .node import Convert, Node, constant

op = relax.op


def converters() -> dict[str, Convert]:
    return {
        "ArgMax": lambda n: _place(n, op.argmax),
        "ArgMin": lambda n: _place(n, op.argmin),
        "CumProd": lambda n: _cumulated(n, op.cumprod),
        "CumSum": lambda n: _cumulated(n, op.cumsum),
        "Hardmax": _hardmax,
        "LogSoftmax": lambda n: _softmax(n, op.nn.log_softmax),
        "ReduceL1": _reduction(lambda x, *axes: op.sum(op.abs(x), *axes), 0),
        "ReduceL2": _reduction(lambda x, *axes: op.sqrt(op.sum(op.multiply(x, x), *axes)), 0, True),
        "ReduceLogSum": _reduction(lambda x, *axes: op.log(op.sum(x, *axes)), -np.inf, True),
        "ReduceLogSumExp": _reduction(_log_sum_exp, -np.inf, True),
        "ReduceMax": _reduction(op.max, -np.inf),
        "ReduceMean": _reduction(op.mean, np.nan, True),
        "ReduceMin": _reduction(op.min, np.inf),
        "ReduceProd": _reduction(op.prod, 1),
        "ReduceSum": _reduction(op.sum, 0),
        "ReduceSumSquare": _reduction(lambda x, *axes: op.sum(op.multiply(x, x), *axes), 0),
        "Softmax": lambda n: _softmax(n, op.nn.softmax),
        "TopK": _top_k,
    }


def axes_of(n: Node) -> list[int] | None:
    """The axes of a reduction, counted from the front; None for none at all."""
    given = n.integers(1) if n.has(1) else list(n.attribute("axes") or [])
    if not given:
        return None if n.attribute("noop_with_empty_axes") else list(range(n.rank()))
    axes = [axis + n.rank() if axis < 0 else axis for axis in given]
    if len(set(axes)) < len(axes) or not all(0 <= axis < n.rank() for axis in axes):
        n.refuse(f"the axes {given} are not axes of a tensor of {n.rank()}")
    return axes


def _reduction(build: Callable[..., relax.Expr], of_none: float, is_of_floats: bool = False) -> Convert:
    """A converter; `of_none` is the result for no elements, of which TVM's kernels write nothing at all."""

    def convert(n: Node) -> relax.Expr:
        if is_of_floats or n.dtype() == "bool":
            n.only_floats()
        axes = axes_of(n)
        keepdims = bool(n.attribute("keepdims"))
        if axes is None:
            n.refuse("noop_with_empty_axes without axes is not supported")
        if all(n.shape(0)[axis] for axis in axes):
            return build(n.data(0), axes, keepdims)
        kept = [1 if axis in axes else size for axis, size in enumerate(n.shape(0))]
        kept = kept if keepdims else [size for axis, size in enumerate(kept) if axis not in axes]
        return constant(np.full(kept, _within(n.dtype(), of_none), n.dtype()))

    return convert


def _within(dtype: str, number: float) -> float:
    """The number, or instead of an infinite one the smallest or greatest that a type of integers has."""
    if np.isfinite(number) or "int" not in dtype:
        return number
    return np.iinfo(dtype).min if number < 0 else np.iinfo(dtype).max


def _log_sum_exp(x: relax.Expr, axes: list[int], keepdims: bool) -> relax.Expr:
    """Of what is below the greatest one, so that none is too large, unless that is infinite."""
    zero = relax.const(0, x.ty.dtype)
    greatest = op.max(x, axes, True)
    greatest = op.where(op.isfinite(greatest), greatest, zero)
    sums = op.log(op.sum(op.exp(op.subtract(x, greatest)), axes, True))
    result = op.add(sums, greatest)
    return result if keepdims else op.squeeze(result, axes)


def _place(n: Node, build: Any) -> relax.Expr:
    """The first of equal ones, or the last, which is the first from behind."""
    axis, keepdims = n.axis(), bool(n.attribute("keepdims"))
    if not n.attribute("select_last_index"):
        return op.astype(build(n.data(0), axis, keepdims), "int64")
    from_behind = op.astype(build(n.emit(op.flip(n.data(0), axis)), axis, keepdims), "int64")
    return op.subtract(relax.const(n.shape(0)[axis] - 1, "int64"), from_behind)


def _softmax(n: Node, build: Any) -> relax.Expr:
    n.only_floats()
    return build(n.data(0), n.axis())


def _hardmax(n: Node) -> relax.Expr:
    """1 for the first of the greatest ones."""
    n.only_floats()
    axis = n.axis()
    greatest = op.argmax(n.data(0), axis, True)
    shape = [n.shape(0)[axis] if at == axis else 1 for at in range(n.rank())]
    places = constant(np.arange(shape[axis]).reshape(shape))
    return op.astype(n.emit(op.equal(n.emit(greatest), places)), n.dtype())


def _cumulated(n: Node, build: Any) -> relax.Expr:
    axis = n.integers(1)[0] % n.rank()
    is_reversed = n.attribute("reverse")
    data = n.emit(op.flip(n.data(0), axis)) if is_reversed else n.data(0)
    result = build(data, axis, n.dtype(), exclusive=bool(n.attribute("exclusive")))
    return op.flip(n.emit(result), axis) if is_reversed else result


def _top_k(n: Node) -> relax.Expr:
    n.attribute("sorted")  # in order they are in any
    (k,) = n.integers(1)
    axis = n.axis()
    if not 0 < k <= n.shape(0)[axis]:
        n.refuse(f"the best {k} of {n.shape(0)[axis]} are not supported")
    return op.topk(n.data(0), k, axis, "both", bool(n.attribute("largest")), "int64")
