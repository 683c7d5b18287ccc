"""Settles sizes and types that scripted code computes with: a model is imported for those of its example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

JIT: Any = torch._C  # whose stubs lack some of its passes
SIZES = {  # and types
    *("aten::size", "aten::dim", "aten::numel", "aten::len", "prim::dtype", "prim::layout"),
    *("aten::is_complex", "aten::is_floating_point", "prim::is_nested", "prim::is_sparse"),
}
# What else is asked of a tensor, but not of its elements.
PROPERTIES = {"prim::device", "prim::is_cuda", "prim::requires_grad"}
OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
OF_VALUES_WITHOUT_A_TAG = {  # which this version of torch may not give them
    *("aten::argwhere", "aten::nonzero_numpy", "aten::repeat_interleave", "aten::tensor_split"),
    *("aten::resize_", "aten::set_", "aten::to_sparse"),
}
WITH_BLOCKS_OR_CALLS = {"prim::If", "prim::Loop", "prim::With", "prim::CallFunction", "prim::CallMethod"}
MASKS = {torch.bool, torch.uint8}


def settle_sizes(module: torch.jit.ScriptModule, inputs: Sequence[torch.Tensor]) -> None:
    """Make sizes of tensors constants, up to the first operator or branch that depends on values."""
    graph: Any = module.graph
    nodes = list(_up_to_values(graph))
    sizes = [at for at, node in enumerate(nodes) if node.kind() in SIZES and _takes_tensor(node)]
    if not sizes:
        return
    places = {value.debugName(): at for at, node in enumerate(nodes) for value in node.outputs()}
    indices = {at: _indices(node) for at, node in enumerate(nodes) if node.kind() == "aten::index"}
    made = {places[value.debugName()] for values in indices.values() for value in values}
    found = _run(module, inputs, sorted({*sizes, *made}))
    for at, values in indices.items():
        if any(found[places[value.debugName()]].dtype in MASKS for value in values):
            sizes = [size for size in sizes if size < at]  # how many elements it takes depends on values
            break
    for size in sizes:
        graph.setInsertPoint(nodes[size])
        nodes[size].output().replaceAllUsesWith(_constant(graph, found[size]))
    graph.setInsertPoint(graph.return_node())


def _constant(graph: Any, value: Any) -> Any:
    if value != []:
        return graph.insertConstant(value)
    empty = graph.insertNode(graph.create("prim::ListConstruct", [], 1)).output()  # a shape without sizes
    empty.setType(JIT.ListType.ofInts())
    return empty


def _up_to_values(graph: Any) -> Iterator[Any]:
    """The nodes before the first whose results may have other sizes for other values of the inputs."""
    for node in graph.nodes():
        if node.kind() in WITH_BLOCKS_OR_CALLS or _depends_on_values(node):
            return
        yield node


def _depends_on_values(node: Any) -> bool:
    space, _, name = node.kind().partition("::")
    if space == "prim" or node.kind() in SIZES | PROPERTIES or node.kind() == "aten::index":
        return False
    if space != "aten" or node.kind() in OF_VALUES_WITHOUT_A_TAG:
        return True
    gives_tensors = all(_is_of_tensors(value) for value in node.outputs())
    if _takes_tensor(node) and not gives_tensors:  # numbers, of which there may be sizes
        return not _is_of_a_number(node)
    if name == "where":
        return len(list(node.inputs())) < 3
    operators = getattr(torch.ops.aten, name, None)
    overloads = [] if operators is None else [getattr(operators, each) for each in operators.overloads()]
    return any(OF_VALUES.intersection(each.tags) for each in overloads)


def _is_of_a_number(node: Any) -> bool:
    """Whether it reads a number that a trace keeps as a tensor."""
    return node.inputsAt(0).node().kind() == "prim::NumToTensor"


def _takes_tensor(node: Any) -> bool:
    return any(_is_of_tensors(value) for value in node.inputs())


def _is_of_tensors(value: Any) -> bool:
    return "Tensor" in str(value.type())


def _indices(node: Any) -> list[Any]:
    """The tensors by which an aten::index takes elements."""
    made = node.inputsAt(1).node()
    listed = made.inputs() if made.kind() == "prim::ListConstruct" else []
    return [value for value in listed if value.type().kind() == "TensorType"]


def _run(module: torch.jit.ScriptModule, inputs: Sequence[torch.Tensor], places: list[int]) -> dict[int, Any]:
    """What the nodes at these places of the graph, in order, give for the inputs."""
    graph: Any = module.graph.copy()  # whose values may have other names
    nodes = list(graph.nodes())
    while list(graph.outputs()):
        graph.eraseOutput(0)
    for node in reversed(nodes[places[-1] + 1 :]):  # which may do and read anything
        node.destroy()
    for place in places:
        graph.registerOutput(nodes[place].output())
    graph.makeMultiOutputIntoTuple()
    function = JIT._create_function_from_graph("sizes", graph)
    with torch.no_grad():
        found = function(module._c, *(tensor.clone() for tensor in inputs))
    return dict(zip(places, found))
