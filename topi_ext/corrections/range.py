"""The length of an `arange` that is known only at run time.

TVM computes it in integers: a fractional step becomes 0 and the division crashes the process, and an empty
range gets a negative length. Importing this module computes it like PyTorch and ONNX: the quotient in
float64, rounded up, and at least 0. A step of 0 is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, no_type_check

import tvm
from tvm import te, tir
from tvm.relay.op import op as registry
from tvm.te.hybrid import script

if TYPE_CHECKING:
    from .._types import ceil_div, float64, int64, output_tensor


@script
@no_type_check
def _count_of_integers(start, stop, step):
    out = output_tensor((1,), "int64")
    assert step[()] != 0, "a range has the step 0"
    distance = int64(stop[()]) - int64(start[()])
    size = int64(step[()])
    if step[()] < 0:
        distance = int64(start[()]) - int64(stop[()])
        size = int64(0) - int64(step[()])
    out[0] = ceil_div(max(distance, int64(0)), size)
    return out


@script
@no_type_check
def _count_of_floats(start, stop, step):
    out = output_tensor((1,), "int64")
    assert step[()] != 0, "a range has the step 0"
    steps = (float64(stop[()]) - float64(start[()])) / float64(step[()])
    whole = int64(steps)
    if steps > float64(whole):
        whole = whole + int64(1)
    out[0] = max(whole, int64(0))
    return out


def _arange_shape(
    _: tvm.ir.Attrs, inputs: Sequence[te.Tensor], __: Sequence[tir.PrimExpr]
) -> list[te.Tensor]:
    is_float = any(tensor.dtype.startswith(("float", "bfloat")) for tensor in inputs)
    return [(_count_of_floats if is_float else _count_of_integers)(*inputs)]


registry.get("arange").reset_attr("FShapeFunc")
registry.get("arange").set_attr("FShapeFunc", _arange_shape)
