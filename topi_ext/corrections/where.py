"""The shape of `where` for tensors without elements, as it occurs in a detector that finds nothing.

Of the lengths 0 and 1, as of an empty tensor and a scalar, TVM takes the longer one; the kernel then gets a
result of another length than it writes, and the virtual machine stops. Importing this module corrects `where`
and indexing by tensors: a length of 1 is broadcast to the other length, whatever that is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, no_type_check

from tvm.te.hybrid import script

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
