"""Shapes of reshaped tensors that are known only at run time: of none without elements, and of as many.

TVM divides the number of elements by the product of the other lengths to compute the length given as -1. If
one of those is 0, the division crashes its virtual machine. Importing this module corrects `reshape` and
`dyn.reshape`: a 0 among the other lengths is left out of both products, so that (0, 4, 1) in the shape
(0, -1) is (0, 4), just as it is (N, 4) for any other N. This is as in a detector that finds nothing.

A reshape that only tells sizes reads each element from where it is: TVM divided its index by those sizes.

Nor does TVM compare the numbers of elements: a tensor that has fewer than its new shape was read beyond its
end, and of one that has more some were ignored. Now an error says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, no_type_check

import tvm
from tvm import relay, te, tir, topi
from tvm.relay.op import op as registry
from tvm.te.hybrid import script

from .._strategy import compute_by, generic, stock_compute

if TYPE_CHECKING:  # the names of hybrid script
    from .._types import const_range, int64, output_tensor

COPY, INFER = 0, -1

_stock_compute = stock_compute("reshape")
_stock = registry.get("reshape").get_attr("FShapeFunc")


def only_tells_sizes(attrs: tvm.ir.Attrs, shape: Sequence[tir.PrimExpr]) -> bool:
    """Whether a reshape of this shape keeps all of its lengths, as one that tells what a type did not.

    All but one of them, to be exact: the number of elements stays, so that the last one stays, too.
    """
    wanted = [int(length) for length in attrs.newshape]
    if len(wanted) != len(shape) or min(wanted, default=0) < INFER:
        return False
    kept = [
        (length == COPY and not attrs.allowzero) or length == getattr(size, "value", None)
        for length, size in zip(wanted, shape)
    ]
    return kept.count(False) <= 1


def _compute(attrs: tvm.ir.Attrs, inputs: list[te.Tensor], out_type: tvm.ir.Type) -> list[te.Tensor]:
    (data,) = inputs
    if not relay.ty.is_dynamic(out_type) or not only_tells_sizes(attrs, data.shape):
        return _stock_compute(attrs, inputs, out_type)
    told = [size if isinstance(size, tir.IntImm) else None for size in out_type.shape]
    shape = [size if length is None else length for size, length in zip(data.shape, told)]
    return [te.compute(shape, lambda *at: data(*at), name="T_reshape", tag=topi.tag.INJECTIVE)]


def _reshape_shape(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], out_ndims: Sequence[tir.PrimExpr]
) -> Sequence[te.Tensor]:
    new_shape = [int(length) for length in attrs.newshape]
    is_number = not new_shape or not len(inputs[0].shape)
    if is_number or min(new_shape) < INFER:  # what has stranger codes stays, too
        return _stock(attrs, inputs, out_ndims)
    wanted = tvm.runtime.convert([tir.IntImm("int64", length) for length in new_shape])
    return [_shape(inputs[0], wanted, _int32(len(new_shape)), _int32(attrs.allowzero))]


def _dyn_reshape_shape(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]
) -> list[te.Tensor]:
    data_shape, new_shape = inputs
    wide = te.compute(new_shape.shape, lambda axis: new_shape[axis].astype("int64"), name="wanted")
    return [_shape(data_shape, wide, _int32(new_shape.shape[0]), _int32(attrs.allowzero))]


@script
@no_type_check
def _shape(data_shape, wanted, rank, allow_zero):
    """The lengths, from those of the data and those `wanted`, which may be 0, to copy, or -1, to infer.

    As statements: TVM took seconds to simplify the one expression that this would be for a length.
    """
    result = output_tensor((rank,), "int64")
    number = int64(1)
    without_zeros = int64(1)
    for i in const_range(data_shape.shape[0]):
        number *= data_shape[i]
        if data_shape[i] != 0:
            without_zeros *= data_shape[i]
    others = int64(1)
    others_without_zeros = int64(1)
    inferred = int64(0)
    for i in const_range(rank):
        assert wanted[i] >= -1, "reshape: a length of its new shape is negative"
        result[i] = wanted[i]
        if i < data_shape.shape[0]:  # known now  # noqa: SIM102
            if wanted[i] == 0 and allow_zero == 0:
                result[i] = data_shape[i]
        if wanted[i] != -1:
            others *= result[i]
            if result[i] != 0:
                others_without_zeros *= result[i]
    for i in const_range(rank):
        if wanted[i] == -1:
            inferred += int64(1)
            if others == 0:
                result[i] = without_zeros // others_without_zeros
            else:
                result[i] = number // others
            others *= result[i]
    assert inferred <= 1, "reshape: more than one length of its new shape is -1"
    assert number == others, "reshape: the tensor has another number of elements than its new shape"
    return result


def _int32(value: int) -> tir.PrimExpr:
    return tir.IntImm("int32", int(value))


for _name, _function in (("reshape", _reshape_shape), ("dyn.reshape", _dyn_reshape_shape)):
    registry.get(_name).reset_attr("FShapeFunc")
    registry.get(_name).set_attr("FShapeFunc", _function)
compute_by("reshape", _compute, generic.schedule_injective)
