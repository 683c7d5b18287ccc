"""Maxima and minima of rows, as those of `_extremes`.

On CUDA, TVM's schedules know its own reductions only: those of the keys, with kernels before and behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, topi

from .._extremes import Keys, number_of, plan
from .._target import is_for_cuda
from .._tvm import dtype_of
from .legalize import legalize


def _extreme(data: te.Tensor, kind: str, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    keys = Keys(kind, dtype_of(data))
    shape, element, reduced = plan(data, axes, keepdims)
    reduce = keys.reducer()
    found = te.compute(
        shape,
        lambda *place: reduce(keys.of(element(place)), axis=reduced),
        name=f"{kind}_key",
        tag=topi.tag.COMM_REDUCE,
    )
    return te.compute(shape, lambda *place: keys.value(found(*place)), kind, topi.tag.ELEMWISE)


def _place(data: te.Tensor, kind: str, axes: Sequence[int], keepdims: bool, dtype: str) -> te.Tensor:
    keys = Keys(kind, dtype_of(data))
    once = te.compute(data.shape, lambda *at: keys.of(data(*at)), "keys", topi.tag.ELEMWISE)
    shape, element, reduced = plan(once, axes, keepdims)
    reduce, number = keys.reducer_of_places(), number_of(reduced, dtype)
    places, _ = te.compute(
        shape,
        lambda *place: reduce((number, element(place)), axis=reduced),
        name=f"arg{kind}_and_key",
        tag=topi.tag.COMM_REDUCE_IDX,
    )
    return te.compute(shape, lambda *place: places(*place), f"arg{kind}", topi.tag.COMM_REDUCE_IDX)


def _of_floats(kind: str, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (data,), attrs = call.args, call.attrs
    keys = Keys(kind, dtype_of(data.ty))
    if keys.are_values:
        return STOCK[kind](builder, call)
    if is_for_cuda():
        found = _of_keys(kind, builder, call, keys)
        return builder.call_te(_of_each(keys.value), found, primfunc_name_hint=kind)
    axes = (
        range(data.ty.ndim) if attrs.axis is None else sorted(int(axis) % data.ty.ndim for axis in attrs.axis)
    )
    return builder.call_te(_extreme, data, kind, list(axes), bool(attrs.keepdims), primfunc_name_hint=kind)


def _of_places(kind: str, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (data,), attrs = call.args, call.attrs
    axes = range(data.ty.ndim) if attrs.axis is None else [int(attrs.axis) % data.ty.ndim]
    keys = Keys(kind, dtype_of(data.ty))
    if dtype_of(data.ty) == "bool" or not axes or (keys.are_values and is_for_cuda()):
        return STOCK[f"arg{kind}"](builder, call)
    if is_for_cuda():
        return _of_keys(f"arg{kind}", builder, call, keys)
    return builder.call_te(
        _place,
        data,
        kind,
        list(axes),
        bool(attrs.keepdims),
        dtype_of(call.ty),
        primfunc_name_hint=f"arg{kind}",
    )


def _of_keys(name: str, builder: relax.BlockBuilder, call: relax.Call, keys: Keys) -> relax.Expr:
    """TVM's reduction, of keys."""
    ordered = builder.emit(builder.call_te(_of_each(keys.of), call.args[0], primfunc_name_hint="keys"))
    reduction = builder.normalize(relax.Call(call.op, [ordered], call.attrs))
    return builder.emit(STOCK[name](builder, reduction))


def _of_each(compute: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda data: te.compute(data.shape, lambda *at: compute(data(*at)), "of_each", topi.tag.ELEMWISE)


STOCK: dict[str, Any] = {}
for _kind in ("max", "min"):
    STOCK[_kind] = legalize(_kind, functools.partial(_of_floats, _kind))
    STOCK[f"arg{_kind}"] = legalize(f"arg{_kind}", functools.partial(_of_places, _kind))
