"""TVM's argsort, sort, topk and sort_by_key on CUDA, by the merge sort and the selection of this folder.

The functions have the signatures of those in `tvm.topi.cuda.sort`; `sort_ir` and `sort_by_key_ir` are called
by other functions there, which allocate the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from .._tvm import IRBuilder, dtype_of, te, tir
from .merge_sort import Buffers, emit_sort
from .order import Order
from .rows import Rows
from .select import Plan, emit_selection, plan_selection
from .tile import tile_shape


def sort_ir(
    data: tir.Buffer,
    values_out: tir.Buffer,
    values_out_swap: tir.Buffer,
    axis: int,
    is_ascend: bool,
    indices_out: tir.Buffer | None = None,
    indices_out_swap: tir.Buffer | None = None,
) -> tir.Stmt:
    """Sort `data` along `axis` into `values_out`, and the index of each value into `indices_out`."""
    indices = None if indices_out is None else (indices_out, indices_out_swap)
    return _sort_with_indices(data, axis, is_ascend, (values_out, values_out_swap), indices)


def sort_by_key_ir(
    keys_in: tir.Buffer,
    values_in: tir.Buffer,
    keys_out: tir.Buffer,
    values_out: tir.Buffer,
    keys_out_swap: tir.Buffer,
    values_out_swap: tir.Buffer,
    axis: int,
    is_ascend: bool,
) -> tir.Stmt:
    """Sort `keys_in` along `axis` into `keys_out`, and `values_in` along with them into `values_out`."""
    ib = IRBuilder()
    keys, values = Rows(ib, keys_in, axis), Rows(ib, values_in, axis)
    emit_sort(
        ib,
        keys.count,
        keys.length,
        Order(keys.dtype, bool(is_ascend)),
        read_key=lambda row, index: keys[row, index],
        keys=Buffers(Rows(ib, keys_out, axis), Rows(ib, keys_out_swap, axis)),
        read_payload=lambda row, index: values[row, index],
        payload=Buffers(Rows(ib, values_out, axis), Rows(ib, values_out_swap, axis)),
    )
    return ib.get()


def topk(data: te.Tensor, k: int, axis: int, ret_type: str, is_ascend: bool, dtype: str) -> list[te.Tensor]:
    """The first `k` of each sorted row, for a `k` that is known and at least 1.

    They are selected, or, where `plan_selection` has no plan, sorted by a merge sort that writes only these
    elements and merges no more than needed.
    """
    axis %= len(data.shape)
    order = Order(dtype_of(data), bool(is_ascend))
    *others, length = data.shape
    plan = plan_selection(reduce(mul, others, 1), length, k)
    if plan is not None and axis == len(others) and order.has_rank:
        return _select(data, plan, order, ret_type, dtype)
    others = [*data.shape[:axis], *data.shape[axis + 1 :]]
    out_shape = [*data.shape[:axis], k, *data.shape[axis + 1 :]]
    length = data.shape[axis]
    needs_passes = not isinstance(length, tir.IntImm) or tile_shape(int(length)).size < length
    # Values in `out`, `swap` and `scratch`, then indices in the same three.
    shapes = [out_shape, [*others, length], [*others, length]][: 3 if needs_passes else 1]
    outputs = te.extern(
        shapes * (1 if ret_type == "values" else 2),
        [data],
        lambda ins, outs: _sort_with_indices(
            ins[0], axis, is_ascend, outs[: len(shapes)], outs[len(shapes) :] or None, keep=k
        ),
        dtype=[dtype_of(data)] * len(shapes) + [dtype] * (0 if ret_type == "values" else len(shapes)),
        name="topk_gpu",
        tag="topk_gpu",
    )
    if ret_type == "values":
        return [outputs[0] if needs_passes else outputs]
    values, indices = outputs[0], outputs[len(shapes)]
    return [values, indices] if ret_type == "both" else [indices]


def _select(
    data: te.Tensor, plan: Plan, order: Order, ret_type: str, dtype: str
) -> list[te.Tensor] | te.Tensor:
    shape = (*data.shape[:-1], plan.keep)
    types = {"both": [dtype_of(data), dtype], "values": [dtype_of(data)], "indices": [dtype]}[ret_type]
    workspace = plan.workspace()

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        results = [Rows(ib, buffer) for buffer in outs[: len(types)]]

        def write(row: tir.PrimExpr, place: tir.PrimExpr, index: tir.PrimExpr) -> None:
            if ret_type != "indices":
                results[0][row, place] = Rows(ib, ins[0])[row, index]
            if ret_type != "values":
                results[-1][row, place] = index.astype(dtype)

        emit_selection(ib, ins[0], order, plan, [*map(ib.buffer_ptr, outs[len(types) :])], write)
        return ib.get()

    outputs = te.extern(
        [*[shape] * len(types), *[extents for extents, _ in workspace]],
        [data],
        emit,
        dtype=[*types, *[of for _, of in workspace]],
        name="topk_gpu",
        tag="topk_gpu",
    )
    return list(outputs)[: len(types)] if isinstance(outputs, (list, tuple)) else [outputs]


def _sort_with_indices(
    data: tir.Buffer,
    axis: int,
    is_ascend: bool,
    values: Sequence[tir.Buffer],
    indices: Sequence[tir.Buffer] | None,
    keep: int | None = None,
) -> tir.Stmt:
    """`values` and `indices`: the buffers of the result and of intermediate passes."""
    ib = IRBuilder()
    keys = Rows(ib, data, axis)

    def buffers(out: tir.Buffer, *others: tir.Buffer) -> Buffers:
        return Buffers(
            Rows(ib, out, axis), *[Rows(ib, other, axis if keep is None else -1) for other in others]
        )

    emit_sort(
        ib,
        keys.count,
        keys.length,
        Order(keys.dtype, bool(is_ascend)),
        read_key=lambda row, index: keys[row, index],
        keys=buffers(*values),
        read_payload=None if indices is None else (lambda _row, index: index.astype(indices[0].dtype)),
        payload=None if indices is None else buffers(*indices),
        keep=keep,
    )
    return ib.get()
