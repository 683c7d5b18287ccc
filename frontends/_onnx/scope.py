"""The importer's walk over a graph, with progress and with errors that name the node.

`scope_class` extends TVM's class for a graph being imported, `GraphProto`; a branch of an `If` or the body
of a `Loop` gets an instance of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import onnx
from onnx import helper

from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.frontend import common

from .._types import sizes
from ..errors import NO_REASON, ImportFailure, gist
from .by_others import definition, is_defined_by_others
from .describe import describe
from .schema import Attributes, Inputs, Known, may_be_a_shape, other_type, unread

LISTS = onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS


def scope_class(graph_proto: type[Any]) -> type[Any]:
    """The importer's class, extended."""

    class Scope(graph_proto):
        """Converts node by node, so that an error has the node's name and not a traceback."""

        type_errors: ClassVar[list[str]] = []  # what TVM says about the node that is being converted
        how_to_fix: ClassVar[str] = ""  # the sizes of the inputs that are known only at run time
        has_converter = staticmethod(lambda node: True)
        on_node = staticmethod(lambda: None)  # called after each node of the outermost graph

        def _construct_nodes(self, graph: onnx.GraphProto) -> None:
            for node in graph.node:
                self._construct_node(graph, node)
                if self._old_manager is None:
                    self.on_node()

        def _construct_node(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
            self.place = graph, node  # for converters that need the context
            self._check_inputs(node)
            self.type_errors.clear()
            try:
                if not self.has_converter(node) and is_defined_by_others(node, self.opset):
                    others = definition(node, self.opset, self.known)
                    for other in others.node:
                        self._construct_node(others, other)
                else:
                    super()._construct_nodes(SimpleNamespace(node=[node]))
                    self._open_sequences(node)
                self._infer_types(node)
            except ImportFailure:
                raise
            except Exception as error:  # the converters raise anything, AssertionError included
                reason = self.type_errors[0] if self.type_errors else gist(error)
                reason = self._unsupported(node) if reason == NO_REASON else reason
                if self.how_to_fix and any(map(self._is_dynamic, node.input)):
                    reason += f"; some of its sizes are known only at run time: {self.how_to_fix}"
                raise ImportFailure(f"{describe(node)} cannot be converted: {reason}") from error

        def _open_sequences(self, node: onnx.NodeProto) -> None:
            """Let a sequence that is one of several results be the tuple itself, as converters need it."""
            for name in node.output:
                result = self._nodes.get(name)
                if isinstance(result, relay.TupleGetItem) and isinstance(result.tuple_value, relay.Tuple):
                    field = result.tuple_value.fields[result.index]
                    self._nodes[name] = field if isinstance(field, relay.Tuple) else result

        def _parse_attr(self, attributes: Sequence[onnx.AttributeProto]) -> dict[str, Any]:
            """TVM's own takes no empty list, as PyTorch exports the axes of `amax()`."""
            empty = [
                each for each in attributes if each.type in LISTS and not helper.get_attribute_value(each)
            ]
            others = [each for each in attributes if each not in empty]
            return {**super()._parse_attr(others), **{each.name: () for each in empty}}

        def _convert_operator(
            self, op_name: str, inputs: Inputs, attrs: dict[str, Any], opset: int
        ) -> relay.Expr:
            """Convert, and refuse what the converter has not read."""
            node = self.place[1]
            recorded = Attributes(attrs)
            while inputs and list.__getitem__(inputs, -1) is None:
                inputs.pop()  # omitted by an empty name; TVM's converters count their inputs
            result = super()._convert_operator(op_name, inputs, recorded, opset)
            reason = unread(node, opset, recorded, inputs)
            made = len(result) if isinstance(result, relay.TupleWrapper) else 1
            if not reason and made < len(node.output):
                reason = f"its output {made}, '{node.output[made]}', is not supported"
            if reason:
                raise NotImplementedError(reason)
            return result

        def _fix_outputs(self, op_name: str, outputs: Any) -> Any:
            """Keep all outputs: TVM's own drops the second of Dropout."""
            return outputs

        def _unsupported(self, node: onnx.NodeProto) -> str:
            """The reason given if a converter failed without one: what it was called with."""
            types = [str(self.known(name) or "a sequence") if name else "nothing" for name in node.input]
            attributes = [str(helper.printable_attribute(a)) for a in node.attribute if not a.HasField("g")]
            given = ", ".join(types) + (" and " + ", ".join(attributes) if attributes else "")
            return f"it is not supported for {given}"

        def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
            """Give the variables their spans at once.

            A node that reads a variable without a span replaces it by one that has, but in its own scope
            only: two branches that read the same input would end up with two variables for it.
            """
            super()._parse_graph_input(graph)
            for name, expr in self._nodes.items():
                if isinstance(expr, relay.Var) and not expr.span:
                    self._nodes[name] = common.set_span(expr, name)
                    if name in self._inputs:
                        self._inputs[name] = self._nodes[name]

        def imported(self, name: str | None) -> relay.Expr | None:
            """The Relay expression of a name of the model, or None before it is imported."""
            return self._nodes.get(self._renames.get(name, name))

        def known(self, name: str) -> Known | None:
            """The type of a name of the model, and its value if it is a constant that may be a shape."""
            expr: Any = self.imported(name)
            type_ = None if expr is None else type_of(expr)
            if not isinstance(type_, relay.TensorType):
                return None
            is_shape = isinstance(expr, relay.Constant) and may_be_a_shape(expr.data.shape)
            return Known(type_.dtype, sizes(type_), expr.data.numpy() if is_shape else None)

        def _is_dynamic(self, name: str) -> bool:
            value = self.imported(name) if name else None
            return value is not None and bool(relay.ty.is_dynamic(type_of(value)))

        def _check_inputs(self, node: onnx.NodeProto) -> None:
            for name in node.input:
                if name and self.imported(name) is None:
                    raise ImportFailure(
                        f"{describe(node)} reads '{name}', which is not an input, an initializer or an "
                        "output of an earlier node: the model is not complete"
                    )

        def _infer_types(self, node: onnx.NodeProto) -> None:
            """Infer types here, where the node to blame for an error or an unexpected type is known."""
            for name in node.output:
                expr = self._nodes.get(name)
                if isinstance(expr, (relay.Call, relay.TupleGetItem, relay.If)):
                    type_of(expr)
            different = other_type(node, self.opset, self.known)
            if different:
                raise NotImplementedError(different)

        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Do nothing: this is checked beforehand, with the nodes' names."""

    return Scope
