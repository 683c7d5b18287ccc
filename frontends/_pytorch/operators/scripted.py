"""Operators that only scripted code has: a trace has followed them."""

from __future__ import annotations

from typing import Any

from .converter import RAISE, SCALAR_TYPES, Converter, Inputs, InputTypes, NotConverted


def raise_exception(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM's own is listed under another name: the code always comes here, or it would not be converted."""
    raise NotConverted(f"the script raises {inputs[0]!r}")


def dtype(converter: Converter, inputs: Inputs, _: InputTypes) -> int:
    """TVM lacks it: the number of a tensor's type."""
    name = converter.infer_type_with_prelude(inputs[0]).dtype
    return [str(each).replace("torch.", "") for each in SCALAR_TYPES].index(name)


CONVERTERS = {RAISE: raise_exception, "prim::dtype": dtype}
