"""Python's lists, which stay lists of the converter wherever their length is known."""

from __future__ import annotations

from typing import Any

from tvm import relay

from .converter import Converter, Inputs, InputTypes
from .shapes import as_number

KNOWN_LISTS = (list, relay.expr.TupleWrapper)  # those whose length is known, which need no list of Relay's


def list_getitem(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own makes lists of Relay, which need the virtual machine."""
    values, index = inputs
    known_index = as_number(index) if isinstance(values, KNOWN_LISTS) else None
    if known_index is None:
        return converter.stock["aten::__getitem__"](inputs, input_types)
    return values[known_index % len(values)]  # a TupleWrapper does not count from the end


def list_len(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own asks the runtime for the length of a list of the converter."""
    in_python = isinstance(inputs[0], KNOWN_LISTS)
    return len(inputs[0]) if in_python else converter.stock["aten::len"](inputs, input_types)


CONVERTERS = {"aten::__getitem__": list_getitem, "aten::len": list_len}
