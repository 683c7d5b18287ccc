"""Python's lists, which stay Python lists in the converter if their length is known."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay import TensorType

from .converter import Converter, Inputs, InputTypes, NotConverted
from .shapes import as_number, size, slice_

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


def slice_of_any(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own slices no lists; of tensors, it forgets all dimensions where one is unknown."""
    values, *bounds = inputs
    if not isinstance(values, list):
        return slice_(converter, inputs, input_types)
    known = [each if each is None else as_number(each) for each in bounds]
    if known.count(None) > bounds.count(None):
        raise NotConverted("where a list is cut is known only at run time")
    return values[slice(*known)]


CONVERTERS = {"aten::__getitem__": list_getitem, "aten::len": list_len, "aten::slice": slice_of_any}
