"""The importer's walk over a graph, with errors that name the node and with progress.

`scope_class` extends TVM's class for a graph being imported, `GraphProto`; a branch of an `If` or the body
of a `Loop` gets one of its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import onnx
from onnx import helper

from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.frontend import common

from ..errors import NO_REASON, ImportFailure, gist
from .schema import Attributes, Inputs, other_type, shown, unread


def scope_class(graph_proto: type[Any]) -> type[Any]:
    """The importer's class, extended."""

    class Scope(graph_proto):
        """Converts node by node, so that what goes wrong has the node's name and not a traceback."""

        type_errors: ClassVar[list[str]] = []  # what TVM says about the node that is being converted
        on_node = staticmethod(lambda: None)  # called after each node of the outermost graph

        def _construct_nodes(self, graph: onnx.GraphProto) -> None:
            for node in graph.node:
                self.place = graph, node  # for the converter that has to look around
                self._check_inputs(node)
                self.type_errors.clear()
                try:
                    super()._construct_nodes(SimpleNamespace(node=[node]))
                    self._infer_types(node)
                except ImportFailure:
                    raise
                except Exception as error:  # the converters raise whatever comes, AssertionError included
                    reason = self.type_errors[0] if self.type_errors else gist(error)
                    reason = self._unsupported(node) if reason == NO_REASON else reason
                    raise ImportFailure(f"{describe(node)} cannot be converted: {reason}") from error
                if self._old_manager is None:
                    self.on_node()

        def _convert_operator(
            self, op_name: str, inputs: Inputs, attrs: dict[str, Any], opset: int
        ) -> relay.Expr:
            """Refuses what the converter has not looked at."""
            node = self.place[1]
            recorded = Attributes(attrs)
            result = super()._convert_operator(op_name, inputs, recorded, opset)
            reason = unread(node, opset, recorded, inputs)
            made = len(result) if isinstance(result, relay.TupleWrapper) else 1
            if not reason and made < len(node.output):
                reason = f"its output {made}, '{node.output[made]}', is not supported"
            if reason:
                raise NotImplementedError(reason)
            return result

        def _fix_outputs(self, op_name: str, outputs: Any) -> Any:
            """All of them: TVM's own drops the second of Dropout."""
            return outputs

        def _unsupported(self, node: onnx.NodeProto) -> str:
            """What to say where a converter failed without saying why: what it was given."""
            types = [shown(self.imported(name)) if name else "nothing" for name in node.input]
            attributes = [str(helper.printable_attribute(a)) for a in node.attribute if not a.HasField("g")]
            given = ", ".join(types) + (" and " + ", ".join(attributes) if attributes else "")
            return f"it is not supported for {given}"

        def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
            """Gives the variables their spans at once.

            A node that reads a variable without one replaces it by one that has, but in its own scope
            only: two branches that read the same input would end with two variables for it.
            """
            super()._parse_graph_input(graph)
            for name, expr in self._nodes.items():
                if isinstance(expr, relay.Var) and not expr.span:
                    self._nodes[name] = common.set_span(expr, name)
                    if name in self._inputs:
                        self._inputs[name] = self._nodes[name]

        def imported(self, name: str | None) -> relay.Expr | None:
            """What a name of the model is in Relay, or None before it is imported."""
            return self._nodes.get(self._renames.get(name, name))

        def _check_inputs(self, node: onnx.NodeProto) -> None:
            for name in node.input:
                if name and self.imported(name) is None:
                    raise ImportFailure(
                        f"{describe(node)} reads '{name}', which is no input, no initializer and no output "
                        "of an earlier node: the model is not complete"
                    )

        def _infer_types(self, node: onnx.NodeProto) -> None:
            """Here, where the node is known that is to blame for an error or for another type than ONNX's."""
            for name in node.output:
                expr = self._nodes.get(name)
                if isinstance(expr, (relay.Call, relay.TupleGetItem, relay.If)):
                    type_of(expr)
            different = other_type(node, self.opset, self.imported)
            if different:
                raise NotImplementedError(different)

        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Checked beforehand, with the nodes' names."""

    return Scope


def describe(node: onnx.NodeProto) -> str:
    """A node as an error message names it."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"the node '{node.name or next(filter(None, node.output), '')}' ({operator})"
