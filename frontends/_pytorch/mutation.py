"""Mutation through views: `x[:, 0] += 1` changes `x`, which must be explicit in Relay, where nothing mutates.

TVM takes the result of an in-place operator for a new tensor, and ignores what the old one was a view of.
Here the result is written back through each view that led to the target, into the tensor below it, under
whose name later operators find it. Other views of that tensor that are used later are taken from it anew.
What this does not cover is refused, rather than computed wrongly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tvm import relay
from tvm.relay.frontend.common import set_span
from tvm.relay.frontend.pytorch import PyTorchOpConverter

from .._fold import keep_known
from ..errors import ImportFailure
from .constants import called
from .memory import (
    LISTS,
    OF_EACH,
    PERHAPS_SAME,
    PERHAPS_VIEWS,
    aliases,
    is_read_before,
    is_used_after,
    mutates,
    path_to_owner,
    shares,
    taken_by,
)
from .operators.converter import known_value
from .operators.replaced import replaced, replaced_anywhere, replaced_between
from .operators.shapes import are_integers, as_length, as_number, size
from .results import settle_results

RESHAPES = {
    *("aten::alias", "aten::detach", "aten::squeeze", "aten::unflatten", "aten::unsqueeze"),
    *("aten::view", "aten::view_as", *PERHAPS_SAME, *PERHAPS_VIEWS),
}
TRANSPOSES = {"aten::transpose", "aten::permute", "aten::t"}
# They do not depend on what the tensor was before.
OVERWRITES = {f"aten::{name}_" for name in ("copy", "fill", "index_fill", "index_put", "masked_fill", "zero")}


def mutations_without_outputs(node: torch.Node) -> list[torch.Node]:
    """The mutations inside a branch or loop without outputs, which TVM's importer ignores."""
    is_lost = node.outputsSize() == 0
    return [inner for block in node.blocks() if is_lost for inner in nodes_of(block) if mutates(inner)]


def nodes_of(block: Any) -> Iterator[torch.Node]:
    """All nodes of a graph or block, including those of the blocks inside."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def write_back(
    converter: PyTorchOpConverter, node: torch.Node, outputs: dict[str, Any], outer: set[str]
) -> Iterator[tuple[str, torch.Node]]:
    """Update, in `outputs`, the tensors whose memory `node` changes; yield the views to convert anew.

    `outer` are the names from outside the operator's branch or loop.
    """
    path = path_to_owner(node.inputsAt(0))
    source = next((value for value in path if mutates(value.node())), path[-1])
    is_constant = source.node().kind() == "prim::Constant"
    if is_constant and (_counts_on_what_was(node) or is_read_before(source, node)):
        raise ImportFailure("it changes a constant, of which a trace of torch has only what it became")
    used = _used_later(path, node)
    if any(value.debugName() in outer for value in used):
        raise ImportFailure("it changes a tensor from outside the branch or loop that it is in")
    names = {value.debugName() for value in used}
    result, written = outputs[node.output().debugName()], {}
    last = max((place for place, value in enumerate(path) if value.debugName() in names), default=-1)
    for place, value in enumerate(path[: last + 1]):
        if place:
            result = _written(converter, path[place - 1], value, result, outputs)
            result = set_span(result, converter.source_map[node])
        written[value.debugName()] = result
    outputs.update(written)
    for value in used:
        if value.debugName() in written:
            continue
        if mutates(value.node()):
            outputs[value.debugName()] = outputs[value.node().inputsAt(0).debugName()]
            continue
        if shares(value.node()) is None:
            kind = value.node().kind()
            raise ImportFailure(f"it changes a tensor that {kind}, whose result is used later, may share")
        yield value.debugName(), value.node()
        settle_results(converter, value.node(), outputs)
        outputs.update(written)  # over items of the same list


def _used_later(path: list[torch.Value], node: torch.Node) -> list[torch.Value]:
    """The values that `node` changes, of those that are used after it, or that such ones are views of."""
    on_path = {value.debugName() for value in path}
    lists = {value.node().inputsAt(0).debugName() for value in path if value.node().kind() in LISTS}
    changed: dict[str, torch.Value] = {}
    for value in aliases(path[-1], node):
        name, given = value.debugName(), [each.debugName() for each in value.node().inputs()]
        is_apart = bool(lists & set(given)) and _are_apart(value)
        if name in on_path or (not is_apart and any(each in changed for each in given)):
            changed[name] = value
    used: list[torch.Value] = []
    wanted: set[str] = set()
    for name, value in reversed(changed.items()):
        if name in wanted or is_used_after(value, node):
            used.append(value)
            if name not in on_path:
                wanted |= {each.debugName() for each in value.node().inputs()}
    return used[::-1]


def _are_apart(item: torch.Value) -> bool:
    """Whether the items of a list of views have no element in common."""
    node = taken_by(item)
    type_: Any = node.inputsAt(0).type()
    strides = type_.strides() if node.kind() not in LISTS | OF_EACH else None
    return strides is not None and 0 not in strides


def _counts_on_what_was(node: torch.Node) -> bool:
    if node.kind() != "aten::index_put_":
        return node.kind() not in OVERWRITES
    accumulate = list(node.inputs())[3]
    return accumulate.toIValue() is not False


def _written(
    converter: PyTorchOpConverter,
    part: torch.Value,
    below: torch.Value,
    result: relay.Expr,
    outputs: dict[str, Any],
) -> relay.Expr:
    """The tensor `below`, with `result` in place of `part`, a view of it."""
    view = taken_by(part)
    kind = view.kind()
    types: list[Any] = [part.type(), below.type()]
    after, before = types
    if mutates(view):
        return result
    if kind in LISTS:
        return result
    is_tensor = before.kind() == "TensorType"
    if is_tensor and kind in OF_EACH and after.sizes() == before.sizes() is not None:
        return result
    is_followed = is_tensor and kind not in OF_EACH and after.dtype() == before.dtype()
    if shares(view) is None or not is_followed:
        raise ImportFailure(f"it changes a tensor through {kind}; assign the result instead")
    base, settings = outputs[below.debugName()], [outputs[each.debugName()] for each in view.inputs()][1:]
    shape = list(converter.infer_shape_with_prelude(base))
    unsized = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if kind in TRANSPOSES:
        return relay.transpose(result, _inverse(kind, settings, len(shape)))
    if kind in RESHAPES and len(unsized) <= 1 and (not unsized or 0 not in shape):
        return relay.reshape(result, [-1 if axis in unsized else size for axis, size in enumerate(shape)])
    is_along_axis = kind in ("aten::select", "aten::slice")
    if unsized and not is_along_axis:
        raise ImportFailure("it changes part of a tensor whose shape is known only at run time")
    if not is_along_axis:
        return replaced_anywhere(base, result, _places(part, shape, settings), shape)
    axis, numbers = settings[0] % len(shape), [as_number(each) for each in settings[1:]]
    unknown = [number is None and given is not None for number, given in zip(numbers, settings[1:])]
    if kind == "aten::slice" and not any(unknown) and _takes_all(*numbers):
        return result
    if kind == "aten::select" and (axis in unsized or any(unknown)):
        return _replaced_at(converter, base, result, axis, settings[1])
    if axis in unsized or any(unknown):
        if numbers[2] not in (None, 1):
            raise ImportFailure(
                "it changes every few elements of an axis, and which is known only at run time; "
                "assign to a mask or to indices instead"
            )
        bounds = (bound if number is None else number for bound, number in zip(settings[1:], numbers[:2]))
        return replaced_between(converter, base, result, axis, *bounds)
    if kind == "aten::select":
        begin = (numbers[0] or 0) % shape[axis]
        end, step = begin + 1, 1
        result = relay.expand_dims(result, axis)
    else:
        begin, end, step = slice(*numbers).indices(shape[axis])
    if (begin, end, step) == (0, shape[axis], 1):
        return result
    return replaced(base, result, axis, range(begin, end, step), shape)


def _takes_all(begin: int | None, end: int | None, step: int | None) -> bool:
    """Whether a slice takes an axis of any length."""
    return begin in (None, 0) and end in (None, sys.maxsize) and step in (None, 1)


def _places(part: torch.Value, shape: list[int], settings: list[Any]) -> np.ndarray:
    """Where in the tensor below, of this shape, each element of a view is: torch itself takes the view."""
    view = taken_by(part)
    known = [known_value(each) for each in settings]
    if any(each is None and given is not None for each, given in zip(known, settings)):
        raise ImportFailure("it changes part of a tensor, and which part is known only at run time")
    numbers = torch.arange(int(np.prod(shape))).reshape(shape)
    taken = called(view, [numbers, *known])
    return (taken if isinstance(taken, torch.Tensor) else taken[part.offset()]).numpy()


def _replaced_at(
    converter: PyTorchOpConverter, base: relay.Expr, part: relay.Expr, axis: int, place: Any
) -> relay.Expr:
    """`base` with `part` at a place of an axis, perhaps negative, where either is known only at run time."""
    shape = converter.infer_shape_with_prelude(base)
    place, zero, one = as_length(place), relay.const(0, "int64"), relay.const(1, "int64")
    if isinstance(shape[axis], int):
        length, places = relay.const(shape[axis], "int64"), relay.const(np.arange(shape[axis]), "int64")
    else:
        length = as_length(size(converter, [base, axis], []))
        places = relay.arange(zero, length, one, "int64")
    is_there = relay.equal(places, relay.where(relay.less(place, zero), place + length, place))
    mask = relay.reshape(is_there, [-1 if each == axis else 1 for each in range(len(shape))])
    changed = relay.annotation.stop_fusion(relay.where(mask, relay.expand_dims(part, axis), base))
    return keep_known(changed, [extent if are_integers(extent) else None for extent in shape])


def _inverse(kind: str, settings: list[Any], rank: int) -> list[int]:
    if kind == "aten::permute":
        axes = [axis % rank for axis in settings[0]]
        return [axes.index(axis) for axis in range(rank)]
    first, second = settings if settings else (0, rank - 1)
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return axes
