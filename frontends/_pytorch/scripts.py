"""Settles what scripted code decides: a trace records one way through a model, a script keeps all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .sizes import settle_sizes

CHOICES = ("prim::If", "prim::Loop", "prim::type")  # of which the trace of a plain function has none
JIT: Any = torch._C  # whose stubs lack some of its passes
MODES = {"aten::is_autocast_enabled": False, "aten::is_grad_enabled": True, "prim::requires_grad": True}


def inline_attributes(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Resolve what scripted code reads from the module, such as `self.training`, but keep the weights.

    `torch.jit.freeze` would do so, but it makes the weights constants too.
    """
    frozen = JIT._freeze_module(module._c, preserveParameters=True)
    return torch.jit._recursive.wrap_cpp_module(frozen)


def has_scripts(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, has branches or loops."""
    inlined = graph.copy()
    JIT._jit_pass_inline(inlined)
    return any(inlined.findAllNodes(kind) for kind in CHOICES)


def settle(module: torch.jit.ScriptModule, inputs: Sequence[torch.Tensor]) -> None:
    """Take the branches, unroll the loops and build the lists that do not depend on the inputs' values."""
    device_kinds = {tensor.device.type for tensor in inputs}
    graph: Any = module.graph
    JIT._jit_pass_inline(graph)
    _settle_absent(graph, module)
    _drop_checks(graph)
    if len(device_kinds) == 1:
        _settle_devices(graph, *device_kinds)
    before, kinds = None, _kinds(graph)
    while kinds != before:  # a branch may hide sizes on which the next one depends, and a loop another loop
        JIT._jit_pass_lower_all_tuples(graph)
        JIT._jit_pass_constant_propagation(graph)
        JIT._jit_pass_constant_loop_unrolling(graph)
        JIT._jit_pass_peephole(graph, True)  # but no shapes, which are those of the trace
        _settle_modes(graph)
        settle_sizes(module, inputs)
        JIT._jit_pass_constant_propagation(graph)
        _construct_lists(graph)
        JIT._jit_pass_dce(graph)
        before, kinds = kinds, _kinds(graph)


def _kinds(graph: Any) -> list[str]:
    """What tells that a round has changed the graph."""
    choices = [kind for kind in CHOICES for _ in graph.findAllNodes(kind, recurse=True)]
    return [*(node.kind() for node in graph.nodes()), *choices]


def _settle_absent(graph: Any, module: torch.jit.ScriptModule) -> None:
    """Attributes that may be a tensor and are None, such as the bias of a convolution, are constants."""
    for node in graph.findAllNodes("prim::GetAttr", recurse=True):
        may_be_none = node.output().type().kind() == "OptionalType"
        if may_be_none and _attribute(node, module._c) is None:
            graph.setInsertPoint(node)
            node.output().replaceAllUsesWith(graph.insertConstant(None))
    graph.setInsertPoint(graph.return_node())


def _attribute(node: Any, whole: Any) -> Any:
    """What a part of the module has by this name; all parts are inlined, so they are those of the whole."""
    if node.kind() == "prim::Param":
        return whole
    return _attribute(node.input().node(), whole).getattr(node.s("name"))


def _settle_modes(graph: Any) -> None:
    """As in training without autocast, where layers such as attention call no operator of all their steps."""
    answers = [(node, answer) for kind, answer in MODES.items() for node in _all(graph, kind)]
    for kind, answer in (("aten::__is__", True), ("aten::__isnot__", False)):
        answers += [(node, answer) for node in _all(graph, kind) if len({*_names(node.inputs())}) == 1]
    for node, answer in answers:
        graph.setInsertPoint(node)
        node.output().replaceAllUsesWith(graph.insertConstant(answer))
        graph.setInsertPoint(graph.return_node())
        node.destroy()


def _all(graph: Any, kind: str) -> list[Any]:
    return graph.findAllNodes(kind, recurse=True)


def _names(values: Iterable[Any]) -> list[str]:
    return [value.debugName() for value in values]


def _drop_checks(graph: Any) -> None:
    """Drop branches that raise or do nothing: a compiled model raises nothing, as the example does not."""
    for node in reversed(graph.findAllNodes("prim::If", recurse=True)):  # those inside others first
        kinds = [[each.kind() for each in block.nodes()] for block in node.blocks()]
        if not node.outputsSize() and [] in kinds and any("prim::RaiseException" in each for each in kinds):
            node.destroy()


def _settle_devices(graph: Any, kind: str) -> None:
    for node in graph.findAllNodes("prim::type"):
        if node.input().node().kind() == "prim::device":
            graph.setInsertPoint(node)
            node.output().replaceAllUsesWith(graph.insertConstant(kind))
    graph.setInsertPoint(graph.return_node())  # the node that it stands at may go


def _construct_lists(graph: Any) -> None:
    """Construct lists with what is appended to them, where nothing reads them before.

    torch's own pass does so, too, but it also takes away mutations of tensors, with operators of its own.
    """
    for append in graph.findAllNodes("aten::append", recurse=False):
        values, item = append.inputs()
        made = values.node()
        earlier = [use.user for use in values.uses() if not use.user.isAfter(append)]
        if made.kind() != "prim::ListConstruct" or len(earlier) > 1:  # the append itself is one of them
            continue
        longer = graph.create("prim::ListConstruct", [*made.inputs(), item], 1)
        longer.insertBefore(append)
        longer.output().setType(values.type())
        append.output().replaceAllUsesWith(longer.output())
        append.destroy()
        values.replaceAllUsesWith(longer.output())
