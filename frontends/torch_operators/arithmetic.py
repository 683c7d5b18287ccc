"""Elementwise arithmetic."""

from __future__ import annotations

from typing import Any

from tvm import relay

from .converter import Converter, Inputs, InputTypes


def div(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own ignores `rounding_mode`."""
    operands, mode = inputs[:2], inputs[2] if len(inputs) > 2 else None
    if mode is None:
        return converter.stock["aten::div"](operands, input_types)
    left, right = converter.pytorch_promote_types(operands, input_types[:2])
    if mode == "floor":
        return relay.floor_divide(left, right)
    whole = "int" in converter.infer_type(left).dtype
    return relay.trunc_divide(left, right) if whole else relay.trunc(relay.divide(left, right))


CONVERTERS = {"aten::div": div}
