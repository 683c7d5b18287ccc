"""Settles what scripted code decides: a trace records one way through a model, a script keeps all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .memory import PERHAPS_SAME, PERHAPS_VIEWS, mutates
from .sizes import settle_sizes

CHOICES = ("prim::If", "prim::Loop", "prim::type")  # of which the trace of a plain function has none
JIT: Any = torch._C  # whose stubs lack some of its passes
MODES = {"aten::is_autocast_enabled": False, "aten::is_grad_enabled": True, "prim::requires_grad": True}
OF_DICTS = ("aten::len", "aten::__contains__", "aten::__getitem__", "aten::_set_item")
SPOKEN = ("aten::warn", "prim::Print")  # which compute nothing
IDENTITIES = {"aten::__is__": True, "aten::__isnot__": False}  # with the answer for one and the same tensor
# What gives no new tensor, but perhaps the one that it takes.
PERHAPS_ITS_INPUT = (
    PERHAPS_SAME
    | PERHAPS_VIEWS
    | {f"aten::{name}" for name in ("conj", "cpu", "positive", "real", "resolve_conj", "resolve_neg")}
)


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
        _settle_dicts(graph)
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
    for kind, answer in IDENTITIES.items():
        same = [(node, _are_same(*node.inputs())) for node in _all(graph, kind)]
        answers += [(node, answer == is_same) for node, is_same in same if is_same is not None]
    for node, answer in answers:
        _replace(graph, node, answer)


def _are_same(one: torch.Value, other: torch.Value) -> bool | None:
    """Whether two values are one tensor; None if that is not known here."""
    one, other = _source(one), _source(other)
    if one.debugName() == other.debugName():
        return True
    return False if _is_new(one) and _is_new(other) else None


def _source(value: torch.Value) -> torch.Value:
    """The value, or the tensor that operators in place have changed to it."""
    while mutates(value.node()) or value.node().kind() == "prim::unchecked_cast":
        value = value.node().inputsAt(0)
    return value


def _is_new(value: torch.Value) -> bool:
    kind = value.node().kind()
    return kind == "prim::Param" or (kind.startswith("aten::") and kind not in PERHAPS_ITS_INPUT)


def _replace(graph: Any, node: Any, answer: Any) -> None:
    """Put a constant in the place of a node's result."""
    graph.setInsertPoint(node)
    node.output().replaceAllUsesWith(graph.insertConstant(answer))
    graph.setInsertPoint(graph.return_node())
    node.destroy()


def _all(graph: Any, kind: str) -> list[Any]:
    return graph.findAllNodes(kind, recurse=True)


def _drop_checks(graph: Any) -> None:
    """Drop branches that raise or do nothing: a compiled model raises nothing, as the example does not.

    Nor does it warn.
    """
    for node in [each for kind in SPOKEN for each in _all(graph, kind)]:
        node.destroy()
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


def _settle_dicts(graph: Any) -> None:
    """Take what is looked up in dicts whose keys are known: Relay has none."""
    for node in list(graph.nodes()):
        made = node.inputsAt(0).node() if node.kind() in OF_DICTS else None
        if made is None or made.kind() != "prim::DictConstruct":
            continue
        given = [*made.inputs()]
        items = {key.toIValue(): (key, value) for key, value in zip(given[::2], given[1::2])}
        if None in items or any(use.user.isBefore(node) for use in made.output().uses()):
            continue
        if node.kind() == "aten::len":
            _replace(graph, node, len(items))
        elif (key := node.inputsAt(1).toIValue()) is None:
            continue
        elif node.kind() == "aten::__contains__":
            _replace(graph, node, key in items)
        elif node.kind() == "aten::__getitem__" and key in items:
            node.output().replaceAllUsesWith(items[key][1])
            node.destroy()
        elif node.kind() == "aten::_set_item":
            items[key] = node.inputsAt(1), node.inputsAt(2)
            _replace_dict(graph, made, node, [value for item in items.values() for value in item])


def _replace_dict(graph: Any, made: Any, setting: Any, items: list[Any]) -> None:
    """Construct a dict where an item of it is set, with that item."""
    anew = graph.create("prim::DictConstruct", items, 1)
    anew.insertBefore(setting)
    anew.output().setType(made.output().type())
    setting.destroy()
    made.output().replaceAllUsesWith(anew.output())
