"""Operators that ONNX itself defines by others, such as Attention of opset 23, AffineGrid and CenterCropPad.

Where there is no converter for one, its definition takes the place of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, helper

from .schema import Known, element_type, schema_of


def is_defined_by_others(node: NodeProto, opset: int) -> bool:
    """Whether ONNX says what others compute the same; of those that run a graph, none is asked for."""
    schema = schema_of(node.op_type, opset, node.domain) if node.domain in ("", "ai.onnx") else None
    if schema is None or any(attribute.HasField("g") for attribute in node.attribute):
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def definition(node: NodeProto, opset: int, known: Callable[[str], Known | None]) -> onnx.GraphProto:
    """The nodes that compute the same: they read its inputs, and write its outputs.

    `known` gives the type of an input, on which the definition may depend.
    """
    schema = schema_of(node.op_type, opset, node.domain)
    if schema.has_function:
        found = schema.get_function_with_opset_version(opset)
    else:
        types = [_type_of(known(name) if name else None) for name in node.input]
        found = schema.get_context_dependent_function_with_opset_version(
            opset, node.SerializeToString(), [each.SerializeToString() for each in types]
        )
    function = FunctionProto.FromString(found)
    if not function.node:
        raise NotImplementedError("ONNX defines it by other operators, but not with these inputs")
    attributes = {name: each.default_value for name, each in schema.attributes.items()}
    attributes.update({attribute.name: attribute for attribute in node.attribute})
    names = dict.fromkeys(function.input, "")
    names.update(zip(function.input, node.input))
    names.update((mine, its) for mine, its in zip(function.output, node.output) if its)
    place = next(filter(None, node.output))  # unlike names of nodes, it is of this one alone
    return helper.make_graph(_renamed(function.node, names, place, attributes), place, [], [])


def _type_of(given: Known | None) -> onnx.TypeProto:
    if given is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(element_type(given.dtype), given.shape)


def _renamed(
    nodes: Iterable[NodeProto],
    names: dict[str, str],
    place: str,
    attributes: Mapping[str, AttributeProto],
) -> list[NodeProto]:
    """Copies with the caller's names and attributes; other names are put behind that of the place."""
    made = []
    for node in nodes:
        for name in filter(None, node.output):
            names.setdefault(name, f"{place}/{name}")
        copied = NodeProto(op_type=node.op_type, domain=node.domain, name=f"{place}/{node.op_type}")
        copied.input.extend(names.get(name, name) for name in node.input)
        copied.output.extend(names.get(name, name) for name in node.output)
        for attribute in node.attribute:
            given = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if given is None or not given.name:
                continue  # the caller gives none, and there is no default
            copied.attribute.add().CopyFrom(given)
            copied.attribute[-1].name = attribute.name
            if given.HasField("g"):
                _rename_graph(copied.attribute[-1].g, names, place, attributes)
        made.append(copied)
    return made


def _rename_graph(
    graph: onnx.GraphProto, names: dict[str, str], place: str, attributes: Mapping[str, AttributeProto]
) -> None:
    """Rename what a graph reads from outside, and what it computes; its inputs are its own."""
    inner = dict(names)
    for value in (*graph.input, *graph.initializer):
        inner[value.name] = value.name
    nodes = _renamed(graph.node, inner, place, attributes)
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = inner.get(value.name, value.name)
