"""An ONNX model that differs, made small: cut at tensors whose values the oracle gives, and fewer outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper

from .explain import plain
from .oracles import OnnxOracle, reads

SECONDS = 60
Arrays = dict[str, np.ndarray]


def shrink(
    model: onnx.ModelProto, inputs: Arrays, still_fails: Callable[[onnx.ModelProto, Arrays], bool]
) -> tuple[onnx.ModelProto, Arrays]:
    """The smallest part that was found in a minute that still fails; the model itself, if none does."""
    until = time.monotonic() + SECONDS
    try:
        values = OnnxOracle(model, inputs).values(plain)
    except Exception:  # ONNX Runtime lacks an operator
        return model, inputs
    smaller = True
    while smaller:
        smaller = False
        for part, given in _parts(model, inputs, values):
            if time.monotonic() > until:
                return model, inputs
            try:
                smaller = still_fails(part, given)
            except Exception:
                smaller = False
            if smaller:
                model, inputs = part, given
                break
    return model, inputs


def _parts(
    model: onnx.ModelProto, inputs: Arrays, values: Arrays
) -> Iterator[tuple[onnx.ModelProto, Arrays]]:
    """Parts with fewer nodes: first those that end early, then those that begin late."""
    graph = model.graph
    outputs = [output.name for output in graph.output]
    tensors = [name for node in graph.node for name in node.output if name]
    for wanted in [[name] for name in tensors if len(outputs) > 1 or name not in outputs]:
        yield _part(model, set(inputs), wanted, values)
    constants = _constants(graph)
    for name in reversed(tensors):
        if name not in outputs and name not in constants:
            part = _part(model, {*inputs, name}, outputs, values)
            if len(part[0].graph.node) < len(graph.node):
                yield part


def _constants(graph: onnx.GraphProto) -> set[str]:
    found = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if all(name in found for name in reads(node)):
            found.update(node.output)
    return found


def _part(
    model: onnx.ModelProto, given: set[str], wanted: list[str], values: Arrays
) -> tuple[onnx.ModelProto, Arrays]:
    needed, nodes = set(wanted), []
    for node in reversed(model.graph.node):
        made = set(node.output) - given
        if made & needed:
            nodes.insert(0, node)
            needed.update(reads(node))
    initializers = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    inputs = {name: values[name] for name in sorted(given & needed)}
    graph = helper.make_graph(nodes, "part", _infos(inputs), _infos({name: values[name] for name in wanted}))
    graph.initializer.extend(initializers)
    part = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=8)
    return part, inputs


def _infos(arrays: Arrays) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
