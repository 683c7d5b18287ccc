"""Slices in as few operators as possible, static if possible.

TVM's importer turns every slice along a dimension of unknown size into shape arithmetic and a
`dyn.strided_slice`, even one that changes nothing, such as PyTorch's exporters write for `x[:, None]`. It
makes constant bounds int32, where the end of `x[k:]` is -1, and counts a start before the first element from
the end twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import numpy as np

from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.op.dyn import _make as dynamic

from ._fold import keep_known
from ._types import sizes

TO_THE_END = np.iinfo("int32").max  # exporters write this or more
Bound = Union[int, relay.Expr]


def constant_slice(data: relay.Expr, bounds: dict[int, tuple[int, int, int]]) -> relay.Expr:
    """Slice by `bounds`, {axis: (start, end, step)} with Python's meaning."""
    shape = sizes(type_of(data))
    static, late = {}, {}
    for axis, (start, end, step) in bounds.items():
        axis, size = axis % len(shape), shape[axis]
        if size is not None:
            start, end, step = slice(start, end, step).indices(size)
            end = max(start, end) if step > 0 else min(start, end)
            if (start, end, step) != (0, size, 1):
                # -1 is the last element in Relay: what ends before the first element ends at -size - 1
                static[axis] = start, end if end >= 0 else -size - 1, step
            continue
        if step < 0:  # x[a:b:-s] is reversed(x)[~a:~b:s]
            data = _reversed(data, axis)
            start, end, step = ~start, ~end, -step
        start = 0 if start <= -TO_THE_END else start
        if (start, step) != (0, 1) or end < TO_THE_END:
            late[axis] = start, end, step
    if static:
        begins, ends, strides = zip(*static.values())
        data = relay.strided_slice(data, list(begins), list(ends), list(strides), axes=list(static))
    return late_slice(data, late) if late else data


def late_slice(data: relay.Expr, bounds: Mapping[int, tuple[Bound, Bound, Bound]]) -> relay.Expr:
    """Slice along dimensions of which the size or a bound is known only at run time.

    Relay's static slice has attributes for this, but does not compile when fused.
    """
    shape = sizes(type_of(data))
    bounds = {axis % len(shape): each for axis, each in bounds.items()}
    rows = [bounds.get(axis, (0, np.iinfo("int64").max, 1)) for axis in range(len(shape))]
    starts, ends, steps = zip(*rows)
    start, end, step = map(_vector, (starts, ends, steps))
    size, zero = relay.shape_of(data, "int64"), relay.const(0, "int64")
    may_go_back = any(isinstance(each, relay.Expr) or each < 0 for each in steps)
    first, last = zero, size
    if may_go_back:  # from the last element at most, to the one before the first
        first = relay.where(relay.less(step, zero), relay.const(-1, "int64"), zero)
        last = size + first

    def within(index: relay.Expr) -> relay.Expr:
        from_the_end = relay.maximum(index + size, first)
        place = relay.where(relay.less(index, zero), from_the_end, relay.minimum(index, last))
        # Relay counts what is negative from the end.
        return relay.where(relay.less(place, zero), place - size, place) if may_go_back else place

    is_constant = all(isinstance(bound, int) for row in rows for bound in row)
    if is_constant or may_go_back:
        end = within(end)
    if may_go_back or any(isinstance(bound, relay.Expr) or bound != 0 for bound in starts):
        start = within(start)
        end = relay.maximum(start, end) if is_constant and not may_go_back else end
    result = dynamic.strided_slice(data, start, end, step, "end")
    return keep_known(result, [None if axis in bounds else size for axis, size in enumerate(shape)])


def _vector(numbers: Sequence[Bound]) -> relay.Expr:
    if all(isinstance(number, int) for number in numbers):
        return relay.const(np.array(numbers, "int64"), "int64")
    parts = [
        relay.cast(relay.reshape(number, [1]), "int64")
        if isinstance(number, relay.Expr)
        else relay.const([number], "int64")
        for number in numbers
    ]
    return parts[0] if len(parts) == 1 else relay.concatenate(parts, 0)


def _reversed(data: relay.Expr, axis: int) -> relay.Expr:
    """`relay.reverse`, which has no shape function, along a dimension of any size."""
    last, step = (
        relay.take(relay.shape_of(data, "int64"), relay.const(axis, "int64")),
        relay.const(-1, "int64"),
    )
    return relay.take(data, relay.arange(last + step, step, step, "int64"), axis)
