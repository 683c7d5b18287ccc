"""Python's lists, which stay Python lists in the converter if their length is known."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay import TensorType

from .converter import Converter, Inputs, InputTypes
from .shapes import as_number, size

KNOWN_LISTS = (list, relay.expr.TupleWrapper)  # those of known length, which need no Relay list


def list_getitem(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own makes Relay lists, which need the virtual machine."""
    values, index = inputs
    known_index = as_number(index) if isinstance(values, KNOWN_LISTS) else None
    if known_index is None:
        return converter.stock["aten::__getitem__"](inputs, input_types)
    return values[known_index % len(values)]  # a TupleWrapper takes no negative index


def list_len(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own asks the runtime even for the length of a Python list, and does not know that of a tensor."""
    (values,) = inputs
    if isinstance(values, KNOWN_LISTS):
        return len(values)
    if isinstance(converter.infer_type_with_prelude(values), TensorType):
        return size(converter, [values, 0], input_types)
    return converter.stock["aten::len"](inputs, input_types)


CONVERTERS = {"aten::__getitem__": list_getitem, "aten::len": list_len}
