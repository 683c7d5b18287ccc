"""Operators whose tensors are constants of no axes, which TVM hands on as numbers: torch computes them."""

from __future__ import annotations

from typing import Any

import torch

from tvm import relay

from .arguments import arguments_of
from .operators.converter import SCALAR_TYPES, constant
from .operators.decomposed import overload_of

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


def called(node: torch.Node, values: list[Any]) -> Any:
    """What torch's own operator gives; numbers stand for tensors without axes."""
    overload, _ = overload_of(node)
    by_place, by_name = [], {}
    for given, parameter, value in zip(node.inputs(), overload._schema.arguments, values):
        if _is_tensor(parameter) and not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=given.type().dtype())
        elif "ScalarType" in str(parameter.real_type) and value is not None:
            value = SCALAR_TYPES[value]
        if parameter.kwarg_only:
            by_name[parameter.name] = value
        else:
            by_place.append(value)
    return overload(*by_place, **by_name)


def _is_tensor(parameter: Any) -> bool:
    return str(parameter.type) == "Tensor"
