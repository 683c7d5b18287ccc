"""prim::Loop as a recursive function."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.frontend.common import set_span

from ..._recursion import recursion
from ..mutation import nodes_of
from .converter import NotConverted

DTYPES = {"IntType": "int64", "FloatType": "float64", "BoolType": "bool"}  # of TorchScript's numbers


def converted_loop(converter: Any, node: torch.Node, outputs: dict[str, Any]) -> list[relay.Expr]:
    """TVM's own takes no tensor that is constant before the loop, nor one that a round makes longer.

    What the body reads from outside is carried too, as each round would compute it again.
    """
    (body,) = node.blocks()
    most, goes_on, *first = (_carried(value, _value(value, outputs)) for value in node.inputs())
    names = [value.debugName() for value in list(body.inputs())[1:]]
    count = len(first)
    for name, value in _captured(body, outputs):
        names.append(name)
        first.append(value)

    def import_body(values: Sequence[relay.Expr]) -> list[relay.Expr]:
        number, _, *carried = values
        inside = {**outputs, **dict(zip(names, carried)), next(body.inputs()).debugName(): number}
        converted = converter.convert_block(body, inside)
        made = [_carried(value, each) for value, each in zip(body.outputs(), converted)]
        return [*made, *(inside[name] for name in names[count:])]

    limit = None if _is_endless(node) else relay.cast(most, "int64")
    results = recursion(import_body, limit, relay.cast(goes_on, "bool"), first, names)
    return set_span(results[:count], converter.source_map[node])


def _value(value: torch.Value, outputs: Mapping[str, Any]) -> Any:
    name = value.debugName()
    return outputs[name] if name in outputs else value.toIValue()


def _carried(value: torch.Value, found: Any) -> relay.Expr:
    """What a variable of the loop is, as a tensor: a number has the type that TorchScript gives it."""
    dtype = DTYPES.get(value.type().kind())
    if dtype is not None:
        return relay.cast(found, dtype) if isinstance(found, relay.Expr) else relay.const(found, dtype)
    if value.type().kind() != "TensorType" or not isinstance(found, relay.Expr):
        raise NotConverted(
            f"it carries '{value.debugName()}', which is {value.type().annotation_str}: only tensors and "
            "numbers can change in a loop; join lists by torch.cat"
        )
    return found


def _captured(body: Any, outputs: Mapping[str, Any]) -> Iterator[tuple[str, relay.Expr]]:
    """The tensors computed before the loop that its body reads."""
    read = dict.fromkeys(value.debugName() for node in nodes_of(body) for value in node.inputs())
    read.update(dict.fromkeys(value.debugName() for value in body.outputs()))
    for name in read:
        value = outputs.get(name)
        is_computed = isinstance(value, relay.Expr) and not isinstance(value, (relay.Constant, relay.Var))
        if is_computed and isinstance(type_of(value), relay.TensorType):
            yield name, value


def _is_endless(node: torch.Node) -> bool:
    """Whether it has no number of rounds, as `while` has none."""
    return node.inputsAt(0).toIValue() == sys.maxsize
