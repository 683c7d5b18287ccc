"""What torch computes: operators of numbers alone, or of constants without axes, numbers for TVM."""

from __future__ import annotations

from typing import Any

import torch

from tvm import relay

from .arguments import arguments_of
from .operators.converter import (
    SCALAR_TYPES,
    Convert,
    Converter,
    Inputs,
    InputTypes,
    NotConverted,
    constant,
    known_value,
)
from .operators.decomposed import OF_MEMORY, overload_of

NUMBERS = (bool, int, float)


def is_of_numbers(node: torch.Node, values: list[Any]) -> bool:
    """Whether it is a function of tensors, each of which is a number, such as `torch.log` of a constant."""
    if not node.kind().startswith("aten::") or node.outputsSize() != 1:
        return False
    if node.output().type().kind() != "TensorType" or any(isinstance(each, relay.Expr) for each in values):
        return False
    tensors = [value for parameter, value in zip(arguments_of(node), values) if _is_tensor(parameter)]
    return bool(tensors) and all(isinstance(each, NUMBERS) for each in tensors)


def computed(node: torch.Node, values: list[Any]) -> Any:
    """What torch computes: a number, or a constant tensor."""
    result = called(node, values)
    return constant(result) if result.dim() else result.item()


def factory_of(name: str) -> Convert | None:
    """The converter of an operator that makes a tensor of numbers alone, such as `aten::hann_window`."""
    namespace, _, base = name.partition("::")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()] if packet else []
    return _made if any(map(_makes_a_tensor_of_numbers, schemas)) else None


def _makes_a_tensor_of_numbers(schema: Any) -> bool:
    returns = [str(each.type) for each in schema.returns]
    return returns == ["Tensor"] and all("Tensor" not in str(each.type) for each in schema.arguments)


def _made(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    return constant(called(converter.current_op[-1], [_known(each) for each in inputs]))


def _known(value: Any) -> Any:
    """An argument as numbers, such as an extent of a tensor whose shape is fixed."""
    if isinstance(value, (list, tuple)):
        return [_known(each) for each in value]
    known = known_value(value)
    if known is None and value is not None:
        raise NotConverted("its arguments are known only at run time")
    return known


def called(node: torch.Node, values: list[Any]) -> Any:
    """What torch's own operator gives; numbers stand for tensors without axes."""
    overload, _ = overload_of(node)
    by_place, by_name = [], {}
    for given, parameter, value in zip(node.inputs(), overload._schema.arguments, values):
        if _is_tensor(parameter) and not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=given.type().dtype())
        elif "ScalarType" in str(parameter.real_type) and value is not None:
            value = SCALAR_TYPES[value]
        if parameter.name in OF_MEMORY and parameter.kwarg_only:
            continue
        if parameter.kwarg_only:
            by_name[parameter.name] = value
        else:
            by_place.append(value)
    return overload(*by_place, **by_name)


def _is_tensor(parameter: Any) -> bool:
    return str(parameter.type) == "Tensor"
