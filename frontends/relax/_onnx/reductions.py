"""Operators that look along axes: sums, maxima, softmax, the best k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from .node import Convert, Node

op = relax.op


def converters() -> dict[str, Convert]:
    return {
        "ArgMax": lambda n: _place(n, op.argmax),
        "ArgMin": lambda n: _place(n, op.argmin),
        "CumSum": _cumsum,
        "LogSoftmax": lambda n: _softmax(n, op.nn.log_softmax),
        "ReduceL1": _reduction(lambda x, *axes: op.sum(op.abs(x), *axes)),
        "ReduceL2": _reduction(lambda x, *axes: op.sqrt(op.sum(op.multiply(x, x), *axes))),
        "ReduceMax": _reduction(op.max),
        "ReduceMean": _reduction(op.mean),
        "ReduceMin": _reduction(op.min),
        "ReduceProd": _reduction(op.prod),
        "ReduceSum": _reduction(op.sum),
        "ReduceSumSquare": _reduction(lambda x, *axes: op.sum(op.multiply(x, x), *axes)),
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


def _reduction(build: Callable[..., relax.Expr]) -> Convert:
    def convert(n: Node) -> relax.Expr:
        n.only_floats()
        axes = axes_of(n)
        keepdims = bool(n.attribute("keepdims"))
        if axes is None:
            n.refuse("noop_with_empty_axes without axes is not supported")
        return build(n.data(0), axes, keepdims)

    return convert


def _place(n: Node, build: Any) -> relax.Expr:
    """The first of equal ones."""
    n.only_floats()
    if n.attribute("select_last_index"):
        n.refuse("select_last_index is not supported")
    return op.astype(build(n.data(0), n.axis(), bool(n.attribute("keepdims"))), "int64")


def _softmax(n: Node, build: Any) -> relax.Expr:
    n.only_floats()
    return build(n.data(0), n.axis())


def _cumsum(n: Node) -> relax.Expr:
    axis = n.integers(1)[0] % n.rank()
    if n.attribute("exclusive") or n.attribute("reverse"):
        n.refuse("exclusive and reverse are not supported")
    return op.cumsum(n.data(0), axis, n.dtype())


def _top_k(n: Node) -> relax.Expr:
    n.only_floats()
    n.attribute("sorted")  # in order they are in any
    (k,) = n.integers(1)
    axis = n.axis()
    if not 0 < k <= n.shape(0)[axis]:
        n.refuse(f"the best {k} of {n.shape(0)[axis]} are not supported")
    return op.topk(n.data(0), k, axis, "both", bool(n.attribute("largest")), "int64")
