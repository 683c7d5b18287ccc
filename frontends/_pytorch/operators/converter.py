"""TVM's PyTorch converter with this project's own converters in its table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import numpy as np
import torch

import tvm
from tvm import relay
from tvm.relay.frontend import pytorch as stock
from tvm.relay.frontend.common import set_span, try_infer_value

from ..._fold import ConstantFolder

Inputs = list[Any]  # Relay expressions, Python numbers, lists of either, None
InputTypes = list[str]
Convert = Callable[["Converter", Inputs, InputTypes], Any]


SCALAR_TYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128),
    *(torch.bool, torch.qint8, torch.quint8, torch.qint32, torch.bfloat16),
)  # in TorchScript they are named by their indices here


PLAIN = (relay.Constant, relay.Call, relay.Tuple, relay.TupleGetItem, tvm.ir.Op)
RAISE = "prim::RaiseException"
# What to do about an operator that is not known.
INSTEAD = (
    "write the model with other operators, or compute this outside of it: what it gives can be one of the "
    "model's inputs or, if it depends on weights alone, a buffer"
)


class NotConverted(ValueError):
    """Why an operator is not converted, in one line for whoever imports the model."""


def bind(convert: Callable[..., Any], *arguments: Any) -> Convert:
    """A converter for several operators, with the arguments in which they differ."""

    @wraps(convert)
    def bound(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
        return convert(*arguments, converter, inputs, input_types)

    return bound


def constant(tensor: torch.Tensor) -> relay.Constant:
    """A tensor in its own type: without one, `relay.const` makes int32 of int64, and float32 of float64."""
    array = tensor.detach().cpu().numpy()
    return relay.const(array, str(array.dtype))


class Converter(stock.PyTorchOpConverter):
    """TVM's converter, with `converters` replacing and extending its table.

    `stock` keeps TVM's own, for a converter that corrects only some of its cases. `otherwise` gives a
    converter for a name in no table, or None.
    """

    has_quantized = False  # whether the graph has quantized tensors

    def __init__(
        self, converters: dict[str, Convert], otherwise: Callable[[str], Convert | None], *args: Any
    ) -> None:
        self.converters, self.otherwise = converters, otherwise
        super().__init__(*args)

    def create_convert_map(self) -> None:
        super().create_convert_map()
        self.stock = dict(self.convert_map)
        self.convert_map.update({name: partial(convert, self) for name, convert in self.converters.items()})
        self.slice = self.convert_map["aten::slice"]  # TVM's `narrow` calls it by this name

    def update_convert_map(self, custom_map: dict[str, Callable]) -> None:
        """Like TVM's own, which adds converters of quantized operators, but keeps those of this project."""
        self.stock.update(custom_map)
        super().update_convert_map(
            {name: convert for name, convert in custom_map.items() if name not in self.converters}
        )

    def convert_operators(
        self, operators: list[tuple[str, torch.Node]], outputs: dict[str, Any], ret_names: list[str]
    ) -> list[Any]:
        """Like TVM's own, which omits the indices of `adaptive_max_pool1d`."""
        super().convert_operators(operators, outputs, [])
        return [stock._wrap_const(outputs[name]) for name in ret_names]

    def infer_type(self, node: relay.Expr, mod: tvm.IRModule | None = None) -> relay.Type:
        """Like TVM's own, which copies the whole prelude for each operator: only lists and trees need it."""
        if mod is None or node in self.types or isinstance(node, relay.Var):
            return super().infer_type(node, mod)
        finder = stock._TypeFinder(types=self.types)
        body = finder.visit(node)  # over variables, in place of what has a type already
        if not _is_of_tensors(body):
            return super().infer_type(node, mod)
        typed = relay.transform.InferType()(
            tvm.IRModule.from_expr(relay.Function([*finder.vars.values()], body))
        )
        self.types[node] = typed["main"].body.checked_type
        return self.types[node]

    def pytorch_promote_types(self, inputs: Inputs, _: InputTypes) -> list[relay.Expr]:
        """Promote as torch does; TVM's own ignores that 0-d tensors have lower priority than others."""
        kinds: list[list[torch.dtype]] = [[], [], []]  # of tensors, of 0-d tensors, of numbers
        for value in inputs:
            if isinstance(value, relay.Expr):
                type_ = self.infer_type_with_prelude(value)
                kinds[0 if len(type_.shape) else 1].append(getattr(torch, type_.dtype))
            else:
                kinds[2].append(torch.result_type(torch.zeros((), dtype=torch.bool), value))
        promoted = functools.reduce(
            _among_kinds, (functools.reduce(torch.promote_types, k) for k in kinds if k)
        )
        dtype = str(promoted).replace("torch.", "")
        return [
            relay.const(value, dtype)
            if not isinstance(value, relay.Expr)
            else value
            if self.infer_type_with_prelude(value).dtype == dtype
            else relay.cast(value, dtype)
            for value in inputs
        ]

    def report_missing_conversion(self, op_names: Iterable[str]) -> None:
        """Like TVM's own, but an operator that torch itself decomposes is not missing."""
        for name in op_names:
            plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
            if not {name, plain} & set(self.convert_map):
                convert = self.otherwise(plain)
                if convert is not None:
                    self.convert_map[plain] = partial(convert, self)
        super().report_missing_conversion(op_names)

    def convert_if(self, if_node: torch.Node, outputs: dict[str, Any]) -> relay.Expr:
        """Like TVM's own, but with any number of results, and without branches that are never taken."""
        results = [value.debugName() for value in if_node.outputs()]
        condition = outputs[if_node.inputsAt(0).debugName()]
        taken = _taken(condition, *if_node.blocks())
        if taken is not None:
            values = self.convert_block(taken, outputs)
            outputs.update(zip(results, values))
            return values[0] if len(values) == 1 else relay.Tuple(values)
        if len(results) == 1:
            return super().convert_if(if_node, outputs)
        branches = [relay.Tuple(self.convert_block(block, outputs)) for block in if_node.blocks()]
        span = self.source_map[if_node]
        chosen = set_span(relay.If(condition, *branches), span)
        items = [relay.TupleGetItem(chosen, index) for index in range(len(results))]
        outputs.update(zip(results, set_span(items, span)))
        return chosen


def _is_of_tensors(expr: relay.Expr) -> bool:
    """Whether an expression calls nothing but operators, on tensors and tuples of them."""
    nodes: list[relay.Expr] = []
    relay.analysis.post_order_visit(expr, nodes.append)
    return all(
        _is_of_tensors_type(node.type_annotation)
        if isinstance(node, relay.Var)
        else isinstance(node, PLAIN) and (not isinstance(node, relay.Call) or isinstance(node.op, tvm.ir.Op))
        for node in nodes
    )


def _is_of_tensors_type(type_: relay.Type | None) -> bool:
    if isinstance(type_, relay.TupleType):
        return all(map(_is_of_tensors_type, type_.fields))
    return isinstance(type_, relay.TensorType)


def _taken(condition: Any, if_true: Any, if_false: Any) -> Any:
    """The block that is always taken, if one is: a compiled model raises nothing."""
    known = known_value(condition)
    if known is not None:
        return if_true if known else if_false
    raises = [any(node.kind() == RAISE for node in block.nodes()) for block in (if_true, if_false)]
    return None if raises[0] == raises[1] else (if_false if raises[0] else if_true)


def _among_kinds(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """The dtype of a kind of operands, which one of lower priority widens only if of a wider category."""
    if (
        higher.is_floating_point
        or (lower == torch.bool)
        or (higher != torch.bool and not lower.is_floating_point)
    ):
        return higher
    return torch.promote_types(higher, lower)


def known_value(value: Any) -> Any:
    """A value, or what a Relay expression computes, as numbers; None if it is known only at run time."""
    if not isinstance(value, relay.Expr):
        return value
    if relay.analysis.free_vars(value):
        return None
    folded = ConstantFolder()(value)
    if isinstance(folded, relay.Constant):
        return folded.data.numpy().tolist()
    return try_infer_value(value, lambda array: array.tolist(), lambda: None)[0]


def known_number(value: Any) -> Any:
    """Of one element, as a number; None if it is known only at run time."""
    known = np.asarray(known_value(value))
    return known.item() if known.size == 1 else None


def dtype_name(number: int | None) -> str | None:
    """Relay's name for a dtype that TorchScript gives by number."""
    return None if number is None else str(SCALAR_TYPES[number]).replace("torch.", "")
