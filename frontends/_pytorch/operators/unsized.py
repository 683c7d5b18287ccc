"""Operators on tensors whose shape is known only at run time.

torch's own definitions, which `decomposed` converts, are traced with the shapes of the model. TVM's own
converters take any shape, and are correct for the arguments that are accepted here.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

from tvm import relay

from ..._einsum import einsum
from ..._products import late_product
from ..._types import sizes
from .converter import Convert, Converter, Inputs, InputTypes, NotConverted

DTYPE = "float32"  # in which TVM's own converters make their constants
REASON = "it takes a tensor whose shape is known only at run time"


def has_unknown_shape(converter: Converter, inputs: Inputs) -> bool:
    return any(
        not isinstance(extent, int)
        for tensor in _tensors(inputs)
        for extent in converter.infer_shape_with_prelude(tensor)
    )


def convert_unsized(converter: Converter, kind: str, inputs: Inputs, input_types: InputTypes) -> Any:
    """Convert `kind` with TVM's own converter, if that is correct."""
    dtypes = {converter.infer_type_with_prelude(tensor).dtype for tensor in _tensors(inputs)}
    if kind not in UNSIZED or (dtypes != {DTYPE} and kind not in OF_ANY_DTYPE):
        raise NotConverted(REASON)
    return UNSIZED[kind](converter, inputs, input_types)


def _tensors(inputs: Inputs) -> list[relay.Expr]:
    values = list(list.__iter__(inputs))  # unlike that of `Arguments`, this iterator marks none as read
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [each for each in itertools.chain.from_iterable(lists) if isinstance(each, relay.Expr)]


def _stock(kind: str) -> Convert:
    return lambda converter, inputs, input_types: converter.stock[kind](inputs, input_types)


def _lerp(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes no number as the weight."""
    operands = converter.pytorch_promote_types(inputs, input_types)
    return converter.stock["aten::lerp"](operands, input_types)


def _deviation(kind: str) -> Convert:
    """TVM's own takes the correction for a flag."""

    def convert(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
        data, *rest = inputs
        axes, correction, keepdims = [None, *rest, False] if len(rest) == 1 else rest
        if correction not in (None, 0, 1):
            raise NotConverted(f"{REASON}, with a correction of {correction}")
        return converter.stock[kind]([data, axes or None, correction != 0, keepdims], input_types)

    return convert


def _norm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own divides by the order."""
    data, order = inputs[:2]
    axes, keepdims = inputs[2:4] if len(inputs) >= 4 else (None, False)
    order = 2.0 if order is None else float(order)
    if order == 0 or math.isnan(order):
        raise NotConverted(f"{REASON}, with an order of {order}")
    return converter.stock["aten::norm"]([data, order, axes or None, keepdims], input_types)


def _einsum(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    equation, operands, *_path = inputs
    types = [converter.infer_type_with_prelude(operand) for operand in operands]
    dtype = types[0].dtype
    try:
        return einsum(equation, operands, [*map(sizes, types)], dtype, partial(late_product, dtype=dtype))
    except NotImplementedError as error:
        raise NotConverted(str(error)) from error


OF_ANY_DTYPE = ("aten::tril", "aten::triu")  # which only move elements
UNSIZED: dict[str, Convert] = {
    **{
        f"aten::{name}": _stock(f"aten::{name}")
        for name in ("addcdiv", "addcmul", "frobenius_norm", "logsumexp", "tril", "triu")
    },
    **{f"aten::{name}": _deviation(f"aten::{name}") for name in ("std", "var", "var_mean")},
    "aten::einsum": _einsum,
    "aten::lerp": _lerp,
    "aten::linalg_vector_norm": _norm,
    "aten::norm": _norm,
}
