"""TVM's PyTorch converter with this project's own converters in its table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span

Inputs = list[Any]  # expressions of Relay, Python's numbers, lists of either, None
InputTypes = list[str]
Convert = Callable[["Converter", Inputs, InputTypes], Any]


class NotConverted(ValueError):
    """Why an operator is not converted, in one line for who imports the model."""


def bind(convert: Callable[..., Any], *arguments: Any) -> Convert:
    """A converter for several operators, with the arguments in which they differ."""

    @wraps(convert)
    def bound(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
        return convert(*arguments, converter, inputs, input_types)

    return bound


class Converter(stock.PyTorchOpConverter):
    """TVM's converter, in whose table `converters` replace and extend what TVM has.

    `stock` keeps TVM's own, for a converter that corrects only some of its cases.
    """

    def __init__(self, converters: dict[str, Convert], *args: Any) -> None:
        self.converters = converters
        super().__init__(*args)

    def create_convert_map(self) -> None:
        super().create_convert_map()
        self.stock = dict(self.convert_map)
        self.convert_map.update({name: partial(convert, self) for name, convert in self.converters.items()})
        self.slice = self.convert_map["aten::slice"]  # TVM's `narrow` calls it by this name

    def convert_operators(
        self, operators: list[tuple[str, torch.Node]], outputs: dict[str, Any], ret_names: list[str]
    ) -> list[Any]:
        """As TVM's own, which leaves out the indices of `adaptive_max_pool1d`."""
        super().convert_operators(operators, outputs, [])
        return [stock._wrap_const(outputs[name]) for name in ret_names]

    def convert_if(self, if_node: torch.Node, outputs: dict[str, Any]) -> relay.Expr:
        """As TVM's own, but with any number of results."""
        results = [value.debugName() for value in if_node.outputs()]
        if len(results) == 1:
            return super().convert_if(if_node, outputs)
        condition = outputs[if_node.inputsAt(0).debugName()]
        branches = [relay.Tuple(self.convert_block(block, outputs)) for block in if_node.blocks()]
        span = self.source_map[if_node]
        chosen = set_span(relay.If(condition, *branches), span)
        items = [relay.TupleGetItem(chosen, index) for index in range(len(results))]
        outputs.update(zip(results, set_span(items, span)))
        return chosen
