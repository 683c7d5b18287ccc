"""The greater and the lesser of two floats are NaN if either is, as in NumPy, PyTorch and ONNX.

TVM's own give the second operand on CPUs if one is NaN, and on CUDA the one that is a number. Importing this
module makes them those of `_bounds`. With a number as one operand, as in a ReLU, a CPU needs no more than
TVM's own, with the number first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import te, tir

from .._bounds import greatest, is_for_cuda, least
from .._register import known
from .._strategy import Compute, compute_by, generic, stock_compute, with_body


def _of_two(
    extreme: Callable[..., Any],
    stock: Compute,
    attrs: Any,
    inputs: list[te.Tensor],
    type_: Any,
) -> list[te.Tensor]:
    (result,) = stock(attrs, inputs, type_)
    (body,) = result.op.body
    if "float" not in result.dtype or not isinstance(body, (tir.Max, tir.Min)):
        return [result]
    one, other = body.a, body.b
    # A number comes first for LLVM, and what is repeated in a row for CUDA, whose code of its tests is wrong.
    if _is_number(inputs[1]) or (_is_repeated(inputs[1]) and not _is_number(inputs[0])):
        one, other = other, one
    if not is_for_cuda() and any(map(_is_number, inputs)):
        return [with_body(result, type(body)(one, other))]
    if result.dtype != "float16":
        return [with_body(result, extreme(one, other))]
    # Neither target has vectors of it to compare.
    return [with_body(result, extreme(one.astype("float32"), other.astype("float32")).astype("float16"))]


def _is_repeated(tensor: te.Tensor) -> bool:
    """Whether it has one element for all of a row."""
    return not tensor.shape or known(tensor.shape[-1]) == 1


def _is_number(tensor: te.Tensor) -> bool:
    """Whether it is a constant other than NaN."""
    if tensor.shape or not isinstance(tensor.op, te.ComputeOp):
        return False
    (body,) = tensor.op.body
    return isinstance(body, tir.FloatImm) and body.value == body.value


for _name, _extreme in (("maximum", greatest), ("minimum", least)):
    compute_by(_name, functools.partial(_of_two, _extreme, stock_compute(_name)), generic.schedule_injective)
