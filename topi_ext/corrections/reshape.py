"""Shapes of reshaped tensors that are known only at run time: of none without elements, and of as many.

TVM divides the number of elements by the product of the other lengths to compute the length given as -1. If
one of those is 0, the division crashes its virtual machine. Importing this module corrects `reshape` and
`dyn.reshape`: a 0 among the other lengths is left out of both products, so that (0, 4, 1) in the shape
(0, -1) is (0, 4), just as it is (N, 4) for any other N. This is as in a detector that finds nothing.

Nor does TVM compare the numbers of elements: a tensor that has fewer than its new shape was read beyond its
end, and of one that has more some were ignored. Now an error says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, no_type_check

import tvm
from tvm import te, tir
from tvm.relay.op import op as registry
from tvm.te.hybrid import script

if TYPE_CHECKING:  # the names of hybrid script
    from .._types import const_range, int64, output_tensor

COPY, INFER = 0, -1

_stock = registry.get("reshape").get_attr("FShapeFunc")


def _reshape_shape(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], out_ndims: Sequence[tir.PrimExpr]
) -> Sequence[te.Tensor]:
    new_shape = [int(length) for length in attrs.newshape]
    is_number = not new_shape or not len(inputs[0].shape)
    if is_number or min(new_shape) < INFER:  # what has stranger codes stays, too
        return _stock(attrs, inputs, out_ndims)
    return [_shape(inputs[0], list(map(_int64, new_shape)), attrs.allowzero)]


def _dyn_reshape_shape(
    attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]
) -> list[te.Tensor]:
    data_shape, new_shape = inputs
    wanted = [new_shape[axis].astype("int64") for axis in range(int(new_shape.shape[0]))]
    return [_shape(data_shape, wanted, attrs.allowzero)]


def _shape(data_shape: te.Tensor, wanted: list[tir.PrimExpr], allow_zero: int) -> te.Tensor:
    """The lengths as a tensor, from those of the data and those `wanted`, which may be COPY or INFER."""
    have = [data_shape[axis] for axis in range(int(data_shape.shape[0]))]
    lengths = [
        length if allow_zero or axis >= len(have) else tir.if_then_else(length == COPY, have[axis], length)
        for axis, length in enumerate(wanted)
    ]
    others = [tir.if_then_else(length == INFER, _int64(1), length) for length in lengths]
    known = _product(others)
    inferred = tir.if_then_else(
        known == 0,
        tir.truncdiv(_product(map(_one_for_zero, have)), _product(map(_one_for_zero, others))),
        tir.truncdiv(_product(have), _one_for_zero(known)),
    )
    result = [tir.if_then_else(length == INFER, inferred, length) for length in lengths]

    def length_of(axis: tir.PrimExpr) -> tir.PrimExpr:
        chosen = _int64(0)
        for at, length in enumerate(result):
            chosen = tir.if_then_else(axis == at, length, chosen)
        return chosen

    shape = te.compute((len(result),), length_of, name="reshape_shape")
    return _of_as_many(data_shape, shape) if have else shape


@script
@no_type_check
def _of_as_many(data_shape, shape):
    """The shape, unless a tensor of it has another number of elements than the data."""
    result = output_tensor((shape.shape[0],), "int64")
    number = int64(1)
    for i in const_range(data_shape.shape[0]):
        number *= data_shape[i]
    others = int64(1)
    for i in const_range(shape.shape[0]):
        others *= shape[i]
    assert number == others, "reshape: the tensor has another number of elements than its new shape"
    for i in const_range(shape.shape[0]):
        result[i] = shape[i]
    return result


def _product(lengths: Iterable[tir.PrimExpr]) -> tir.PrimExpr:
    return reduce(mul, lengths, _int64(1))


def _one_for_zero(length: tir.PrimExpr) -> tir.PrimExpr:
    return tir.max(length, _int64(1))


def _int64(value: int) -> tir.PrimExpr:
    return tir.IntImm("int64", value)


for _name, _function in (("reshape", _reshape_shape), ("dyn.reshape", _dyn_reshape_shape)):
    registry.get(_name).reset_attr("FShapeFunc")
    registry.get(_name).set_attr("FShapeFunc", _function)
