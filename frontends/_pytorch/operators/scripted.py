"""Operators that only scripted code has: a trace has followed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tvm import relay

from .converter import RAISE, SCALAR_TYPES, Converter, Inputs, InputTypes, NotConverted, dtype_name
from .functions import is_float


def raise_exception(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own is listed under another name: the code always comes here, or it would not be converted."""
    raise NotConverted(f"the script raises {inputs[0]!r}")


def dtype(converter: Converter, inputs: Inputs, _: InputTypes) -> int:
    """TVM lacks it: the number of a tensor's type."""
    name = converter.infer_type_with_prelude(inputs[0]).dtype
    return [str(each).replace("torch.", "") for each in SCALAR_TYPES].index(name)


def item(_converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    (number,) = inputs
    return relay.reshape(number, []) if isinstance(number, relay.Expr) else number


def int_(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own keeps the fraction of what is known only at run time."""
    (number,) = inputs
    if isinstance(number, relay.Expr) and is_float(converter.infer_type_with_prelude(number).dtype):
        return relay.cast(number, "int64")
    return converter.stock["aten::Int"](inputs, input_types)


def tensor(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own keeps the type of a number, and takes a list with what is known only at run time for one."""
    data, type_, *_ = inputs
    numbers = list(_numbers(data))
    if not any(isinstance(each, relay.Expr) and not isinstance(each, relay.Constant) for each in numbers):
        return converter.stock["aten::tensor"](inputs, input_types)
    kinds = {_kind(converter, each) for each in numbers}
    kind = next(kind for kind in (torch.get_default_dtype(), torch.int64, torch.bool) if kind in kinds)
    return _stacked(data, dtype_name(type_) or str(kind).replace("torch.", ""))


def _numbers(data: Any) -> Iterator[Any]:
    if not isinstance(data, list):
        yield data
    else:
        for each in data:
            yield from _numbers(each)


def _kind(converter: Converter, number: Any) -> torch.dtype:
    """The type that torch gives a tensor of a number of Python."""
    if not isinstance(number, relay.Expr):
        return torch.tensor(number).dtype
    name = converter.infer_type_with_prelude(number).dtype
    return torch.get_default_dtype() if is_float(name) else torch.bool if name == "bool" else torch.int64


def _stacked(data: Any, dtype: str) -> relay.Expr:
    if isinstance(data, list):
        return relay.stack([_stacked(each, dtype) for each in data], 0)
    is_expr = isinstance(data, relay.Expr)
    return relay.cast(relay.reshape(data, []), dtype) if is_expr else relay.const(data, dtype)


CONVERTERS = {
    RAISE: raise_exception,
    "aten::Int": int_,
    "aten::item": item,
    "aten::tensor": tensor,
    "prim::dtype": dtype,
}
