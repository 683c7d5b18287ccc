"""Keep TVM's own indexing operators inside their tensors.

`gather`, `gather_nd` and indexing by tensors read at any index, `scatter_elements` and `scatter_nd` write at
any, `cumsum` and `cumprod` write the first element of rows without any, and `vision.roi_align` reads at any
batch index and takes minutes for an infinite region. One bad number in a frame then crashes the process or,
worse, does not. Importing this module corrects them: an index beyond a length is clipped, as `take` does, and
a negative one counts from the end; updates outside the tensor are dropped; and regions are pooled by
`topi_ext.roi_align`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tir, topi
from tvm.relay.op import op as registry

from .._strategy import compute_by, generic, stock_compute
from ..roi_align import cpu, cuda

_x86: Any = importlib.import_module("tvm.relay.op.strategy.x86")
_cuda: Any = importlib.import_module("tvm.relay.op.strategy.cuda")
_unique: Any = importlib.import_module("tvm.topi.unique")
FLOATS = ("float32", "float16")


# --- operators that read by index


def _gather(attrs: tvm.ir.Attrs, inputs: list[te.Tensor]) -> list[te.Tensor]:
    data, indices = inputs
    return [data, _inside(indices, lambda *_: data.shape[int(attrs.axis)])]


def _gather_nd(attrs: tvm.ir.Attrs, inputs: list[te.Tensor]) -> list[te.Tensor]:
    data, indices = inputs
    lengths = data.shape[int(attrs.batch_dims) :]

    def length_of(axis: tir.PrimExpr, *_: tir.PrimExpr) -> tir.PrimExpr:
        last = int(indices.shape[0]) - 1
        return functools.reduce(
            lambda other, at: tir.Select(axis == at, lengths[at], other), range(last), lengths[last]
        )

    return [data, _inside(indices, length_of)]


def _adv_index(_attrs: tvm.ir.Attrs, inputs: list[te.Tensor]) -> list[te.Tensor]:
    data, *indices = inputs
    return [data, *(_inside(each, lambda *_, at=at: data.shape[at]) for at, each in enumerate(indices))]


def _inside(indices: te.Tensor, length_of: Callable[..., tir.PrimExpr]) -> te.Tensor:
    is_narrow = tvm.DataType(indices.dtype).bits < 32  # such as int8, which holds no length of 128
    dtype = "int32" if is_narrow else indices.dtype

    def index(*place: tir.Var) -> tir.PrimExpr:
        length = length_of(*place).astype(dtype)
        given = indices[place].astype(dtype)
        from_start = tir.if_then_else(given < 0, given + length, given)
        return tir.max(tir.min(from_start, length - 1), tir.const(0, dtype))

    return te.compute(indices.shape, index, name="inside", tag=topi.tag.INJECTIVE)


def _mend_reader(name: str, inside: Callable[[tvm.ir.Attrs, list[te.Tensor]], list[te.Tensor]]) -> None:
    stock = stock_compute(name)

    def compute(attrs: tvm.ir.Attrs, inputs: list[te.Tensor], type_: tvm.ir.Type) -> list[te.Tensor]:
        return list(stock(attrs, inside(attrs, list(inputs)), type_))

    compute_by(name, compute, schedule_for=generic.schedule_injective)


# --- operators that write by index


def _kept_inside(stock: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    """A function for `te.extern` that drops writes outside its output."""

    @functools.wraps(stock)
    def scatter(*args: Any) -> te.Tensor:
        op = stock(*args).op
        (output,) = op.output_placeholders

        def guarded(store: tir.BufferStore) -> tir.Stmt | None:
            places = [store, *_addresses_in(store.value)]  # atomic additions take an address
            inside = [
                each
                for place in places
                if place.buffer.data.same_as(output.data)
                for index, length in zip(place.indices, place.buffer.shape)
                for each in (index >= 0, index < length)
            ]
            return tir.IfThenElse(tir.all(*inside), store, None) if inside else None

        body = tir.stmt_functor.ir_transform(op.body, None, guarded, ["tir.BufferStore"])
        return _with_statement(op, body)

    return scatter


def _with_statement(op: te.ExternOp, body: tir.Stmt) -> te.Tensor:
    """The tensor of an operator that does something else."""
    return tvm.te._ffi_api.ExternOp(
        op.name, op.tag, op.attrs, op.inputs, op.input_placeholders, op.output_placeholders, body
    ).output(0)


def _of_what_is_there(stock: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    """A function for `te.extern`, which begins with the first element of each row, for rows without any."""

    @functools.wraps(stock)
    def scan(*args: Any, **options: Any) -> te.Tensor:
        op = stock(*args, **options).op
        (output,) = op.output_placeholders
        is_there = tir.all(*(extent > 0 for extent in output.shape))
        return _with_statement(op, tir.IfThenElse(is_there, op.body, None))

    return scan


def _addresses_in(value: tir.PrimExpr) -> list[tir.BufferLoad]:
    found: list[tir.BufferLoad] = []

    def visit(node: tvm.runtime.Object) -> None:
        if isinstance(node, tir.Call) and getattr(node.op, "name", "") == "tir.address_of":
            found.append(node.args[0])

    tir.stmt_functor.post_order_visit(value, visit)
    return found


# --- regions


def _roi_align_strategy(kernels: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """The strategy with our `kernels` of a target; `stock` is TVM's own."""

    def compute(attrs: tvm.ir.Attrs, inputs: list[te.Tensor], _type: tvm.ir.Type) -> list[te.Tensor]:
        pooled = kernels.multiscale_roi_align(
            inputs[:1],
            inputs[1],
            pooled_size=[int(bins) for bins in attrs.pooled_size],
            scales=[float(attrs.spatial_scale)],
            least_areas=None,
            sampling_ratio=max(int(attrs.sample_ratio), 0),
            aligned=False,
            by_position=False,
            layout=str(attrs.layout),
            factors=[1.0],
            out_dtype=inputs[0].dtype,
        )
        return [pooled]

    def strategy(
        attrs: tvm.ir.Attrs, inputs: list[te.Tensor], type_: tvm.ir.Type, target: tvm.target.Target
    ) -> Any:
        data, rois = inputs
        channels = data.shape[str(attrs.layout).index("C")]
        is_ours = str(attrs.mode) == "avg" and data.dtype in FLOATS and rois.dtype in FLOATS
        if not is_ours or not isinstance(channels, (int, tir.IntImm)):
            return stock(attrs, inputs, type_, target)
        result = registry.OpStrategy()
        schedule = topi.generic.schedule_extern
        result.add_implementation(
            compute, lambda _attrs, outs, _target: schedule(outs), name="roi_align.topi_ext"
        )
        return result

    return strategy


for _name, _indices in (("gather", _gather), ("gather_nd", _gather_nd), ("adv_index", _adv_index)):
    _mend_reader(_name, _indices)
for _topi in (topi, topi.cuda):
    for _name in ("scatter_elements", "scatter_nd"):
        setattr(_topi, _name, _kept_inside(getattr(_topi, _name)))
for _name in ("cumsum", "cumprod"):
    setattr(topi, _name, _of_what_is_there(getattr(topi, _name)))
_unique.cumsum = topi.cumsum
for _targets, _kernels, _stock in (
    (["cpu"], cpu, _x86.roi_align_strategy_cpu),
    (["cuda", "gpu"], cuda, _cuda.roi_align_strategy_cuda),
):
    generic.roi_align_strategy.register(_targets, _roi_align_strategy(_kernels, _stock), override=True)
