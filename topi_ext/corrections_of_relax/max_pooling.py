"""Maxima of windows: they start from minus infinity, and are NaN if any element is, as for torch.

TVM's poolings start from the lowest finite number, and pad with it: the maximum of a window of minus
infinities is -3.4e38. Whether they find a NaN depends on where it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, topi
from tvm import tirx as tir

from .._bounds import greatest
from .._tvm import dtype_of
from .legalize import legalize


def _maxima(data: te.Tensor, shape: Sequence[Any], axes: Sequence[int], attrs: Any) -> te.Tensor:
    """In windows along axes, whose number is the rank of the image."""
    rank, dtype = len(axes), dtype_of(data)
    lowest = tir.const(-math.inf, dtype)
    padding = [int(each) for each in attrs.padding]
    before, behind = ([0] * len(shape) for _ in range(2))
    for number, axis in enumerate(axes):
        stride = int(attrs.strides[number])
        before[axis] = padding[number]
        behind[axis] = padding[rank + number] + (stride - 1 if attrs.ceil_mode else 0)
    padded = topi.nn.pad(data, before, behind, lowest, name="padded") if any(before + behind) else data
    window = [te.reduce_axis((0, int(size)), f"k{number}") for number, size in enumerate(attrs.pool_size)]
    reduce = te.comm_reducer(greatest, lambda _: lowest, name="greatest")

    def maximum(*at: Any) -> Any:
        places = list(at)
        for axis, stride, dilation, along in zip(axes, attrs.strides, attrs.dilation, window):
            places[axis] = at[axis] * int(stride) + along.var * int(dilation)
        return reduce(padded(*places), axis=window)

    return te.compute(shape, maximum, name="max_pool", tag="pool_max")


def _max_pool(rank: int, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (data,), attrs = call.args, call.attrs
    layout = str(attrs.layout)
    is_plain = len(layout) == data.ty.ndim and str(attrs.out_layout) == layout
    if not is_plain or "float" not in dtype_of(data.ty):
        return STOCK[rank](builder, call)
    axes = [layout.index(name) for name in "DHW"[-rank:]]
    return builder.call_te(
        _maxima, data, list(call.ty.shape), axes, attrs, primfunc_name_hint=f"max_pool{rank}d"
    )


STOCK = {rank: legalize(f"nn.max_pool{rank}d", functools.partial(_max_pool, rank)) for rank in (1, 2, 3)}
