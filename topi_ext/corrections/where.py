"""The shape of `where` for tensors without elements, as it occurs in a detector that finds nothing.

Of the lengths 0 and 1, as of an empty tensor and a scalar, TVM takes the longer one; the kernel then gets a
result of another length than it writes, and the virtual machine stops. Importing this module corrects `where`
and indexing by tensors: a length of 1 is broadcast to the other length, whatever that is. Indices may also be
scalars, for which TVM's own has no shape where the result goes into a tensor of unknown size.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, no_type_check

from tvm import te, tir, topi
from tvm.relay.op.op import register_shape_func
from tvm.runtime import convert
from tvm.te.hybrid import script

from .._strategy import ABOVE_STOCK

if TYPE_CHECKING:
    from .._types import const_range, int64, output_tensor


@script
@no_type_check
def _broadcast(shape, other):
    rank = shape.shape[0]
    other_rank = other.shape[0]
    out_rank = max(rank, other_rank)
    out = output_tensor((out_rank,), "int64")
    for i in const_range(out_rank):
        length = int64(1)
        other_length = int64(1)
        if rank == out_rank:
            length = shape[i]
        elif rank - (out_rank - i) >= 0:
            length = shape[rank - (out_rank - i)]
        if other_rank == out_rank:
            other_length = other[i]
        elif other_rank - (out_rank - i) >= 0:
            other_length = other[other_rank - (out_rank - i)]
        assert length == other_length or length == 1 or other_length == 1, "Invalid broadcast shapes"
        if length == 1:
            out[i] = other_length
        else:
            out[i] = length
    return out


_transform: Any = importlib.import_module("tvm.relay.op._transform")
_transform._broadcast_shape_tensors = _broadcast  # of `where` and `adv_index`


def _adv_index_shape(_attrs: Any, shapes: list[te.Tensor], _out: Any) -> list[te.Tensor]:
    data, *indices = shapes
    vectors = [each for each in indices if len(each.shape)]  # of a scalar, the shape is a scalar too
    if vectors:
        taken = functools.reduce(_broadcast, vectors)
        return [_transform._adv_index_post_process(data, taken, convert(len(indices)))]
    rank = int(data.shape[0])
    if len(indices) == rank:
        return [te.compute((), lambda: tir.const(0, "int64"))]
    return [topi.strided_slice(data, [len(indices)], [rank])]


register_shape_func("adv_index", False, _adv_index_shape, ABOVE_STOCK)
