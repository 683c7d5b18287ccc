"""What TVM's argsort, sort, topk and sort_by_key ask for on CUDA, by the merge sort of this folder.

`sort_ir` and `sort_by_key_ir` have the signatures of those in `tvm.topi.cuda.sort`, whose callers
allocate the buffers.
"""

import functools
import operator

from tvm import tir

from .merge_sort import PingPong, emit_sort, places
from .order import Order


def sort_ir(
    data, values_out, values_out_swap, axis, is_ascend, indices_out=None, indices_out_swap=None, keep=None
):
    """Sort `data` along `axis` into `values_out`, and into `indices_out` where each value was.

    With `keep`, only the first so many of each row are defined.
    """
    if indices_out is None:
        return _sort(data, (values_out, values_out_swap), axis, is_ascend, keep)

    def index_itself(_row, index):
        return index.astype(indices_out.dtype)

    return _sort(
        data,
        (values_out, values_out_swap),
        axis,
        is_ascend,
        keep,
        index_itself,
        (indices_out, indices_out_swap),
    )


def sort_by_key_ir(keys_in, values_in, keys_out, values_out, keys_out_swap, values_out_swap, axis, is_ascend):
    """Sort `keys_in` along `axis` into `keys_out`, and `values_in` along with them into `values_out`."""
    place = places(values_in.shape, axis)

    def value(row, index):
        return tir.BufferLoad(values_in, place(row, index))

    return _sort(
        keys_in, (keys_out, keys_out_swap), axis, is_ascend, None, value, (values_out, values_out_swap)
    )


def _sort(keys_in, keys, axis, is_ascend, keep=None, read_payload=None, payload=None):
    axis = int(axis) % len(keys_in.shape)
    place = places(keys_in.shape, axis)
    ib = tir.ir_builder.create()
    emit_sort(
        ib,
        rows=functools.reduce(operator.mul, [*keys_in.shape[:axis], *keys_in.shape[axis + 1 :]], 1),
        length=keys_in.shape[axis],
        order=Order(keys_in.dtype, bool(is_ascend)),
        read_key=lambda row, index: tir.BufferLoad(keys_in, place(row, index)),
        keys=PingPong(ib, *keys, axis),
        read_payload=read_payload,
        payload=PingPong(ib, *payload, axis) if payload else None,
        keep=keep,
    )
    return ib.get()
