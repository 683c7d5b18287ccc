"""Mutation through views: `x[:, 0] += 1` changes `x`, which must be explicit in Relay, where nothing mutates.

TVM takes the result of an in-place operator for a new tensor, and ignores what the old one was a view of.
Here the result is written back through each view that led to the target, into the tensor below it, under
whose name later operators find it. What this does not cover is refused, rather than computed wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from tvm import relay
from tvm.relay.frontend.common import set_span
from tvm.relay.frontend.pytorch import PyTorchOpConverter

from ..errors import ImportFailure
from .operators.shapes import as_number

RESHAPES = {"aten::view", "aten::unsqueeze", "aten::squeeze", "aten::detach", "aten::alias", "aten::view_as"}
TRANSPOSES = {"aten::transpose", "aten::permute", "aten::t"}
VIEWS = RESHAPES | TRANSPOSES | {"aten::select", "aten::slice"}
PARTS = {"prim::ListUnpack", "aten::unbind", "aten::chunk", "aten::split", "aten::split_with_sizes"}
PERHAPS_VIEWS = {"aten::reshape", "aten::flatten", "aten::contiguous", "aten::to", "aten::dropout"}
# They change a tensor's shape or metadata in place, but none of its elements.
SHAPE_IN_PLACE = {
    f"aten::{name}_"
    for name in ("detach", "requires_grad", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
}
# They do not depend on what the tensor was before.
OVERWRITES = {f"aten::{name}_" for name in ("copy", "fill", "index_fill", "index_put", "masked_fill", "zero")}


def mutates(node: torch.Node) -> bool:
    """Whether an operator changes its first input."""
    kind = node.kind()
    if kind in SHAPE_IN_PLACE:
        return False
    in_place = (kind.endswith("_") and not kind.endswith("__")) or kind.startswith("aten::__i")
    return in_place and node.outputsSize() == 1


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
) -> None:
    """Update, in `outputs`, the tensors that the target of `node` is a view of.

    `outer` are the names from outside the operator's branch or loop.
    """
    target = node.inputsAt(0)
    chain = _views_below(target)
    views = list(takewhile(lambda below: not mutates(below), chain))
    owner = views[-1].inputsAt(0) if views else target
    is_constant = owner.node().kind() == "prim::Constant"
    if is_constant and (_counts_on_what_was(node) or _is_read_before(node, owner)):
        raise ImportFailure("it changes a constant, of which a trace of torch has only what it became")
    while chain and not _is_used_after(node, chain[-1].inputsAt(0)):
        chain.pop()
    for value in [target] + [view.inputsAt(0) for view in chain]:
        _refuse_other_views(node, value, chain)
    result = outputs[node.output().debugName()]
    if target.debugName() not in outer and _is_used_after(node, target):  # as in a script, by its old name
        outputs[target.debugName()] = result
    for view in chain:
        base = view.inputsAt(0)
        if view.kind() not in VIEWS and not mutates(view):
            raise ImportFailure(f"it changes a tensor through {view.kind()}; assign the result instead")
        if base.debugName() in outer:
            raise ImportFailure("it changes a tensor from outside the branch or loop that it is in")
        result = set_span(_written(converter, view, result, outputs), converter.source_map[node])
        outputs[base.debugName()] = result


def _counts_on_what_was(node: torch.Node) -> bool:
    if node.kind() != "aten::index_put_":
        return node.kind() not in OVERWRITES
    accumulate = list(node.inputs())[3]
    return accumulate.toIValue() is not False


def _is_read_before(node: torch.Node, owner: torch.Value) -> bool:
    """Whether an element of a tensor, or of a view of it, is read before `node` changes it."""
    aliases = [owner]
    for alias in aliases:
        for use in alias.uses():
            user = use.user
            if not user.isBefore(node):
                continue
            if _is_view(user) or _may_be_view(user) or (use.offset == 0 and mutates(user)):
                aliases += user.outputs()
            else:
                return True
    return False


def _views_below(value: torch.Value) -> list[torch.Node]:
    """The operators between a value and the tensor that owns its memory, the last one first.

    What an operator changes in place it returns: `view.add_(1).mul_(2)` changes the same view twice.
    """
    chain = []
    while _is_view(value.node()) or mutates(value.node()) or _may_be_view(value.node()):
        chain.append(value.node())
        value = value.node().inputsAt(0)
    return chain


def _is_view(node: torch.Node) -> bool:
    """Whether the result shares the memory of the first input, as torch declares of its operators."""
    if node.kind() in PARTS | SHAPE_IN_PLACE:
        return True
    if node.schema() == "(no schema)" or node.kind() in PERHAPS_VIEWS:
        return False
    results = torch._C.parse_schema(node.schema()).returns
    shared = [result.alias_info for result in results if result.alias_info is not None]
    return any(not alias.is_write for alias in shared)


def _may_be_view(node: torch.Node) -> bool:
    """Whether the result may share memory: a conversion to another dtype, or with copy=True, does not."""
    if node.kind() != "aten::to":
        return node.kind() in PERHAPS_VIEWS
    names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
    is_copied = "copy" in names and node.inputsAt(names.index("copy")).toIValue() is True
    before, after = (value.type() for value in (node.inputsAt(0), node.output()))
    dtypes = [type_.dtype() for type_ in (before, after) if type_.kind() == "TensorType"]
    return not is_copied and (len(dtypes) < 2 or None in dtypes or dtypes[0] == dtypes[1])


def _is_used_after(node: torch.Node, value: torch.Value) -> bool:
    return any(use.user.isAfter(node) for use in value.uses())


def _refuse_other_views(node: torch.Node, value: torch.Value, chain: list[torch.Node]) -> None:
    own = {output.debugName() for view in chain for output in view.outputs()}
    for other in (use.user for use in value.uses()):
        results = [] if other.isAfter(node) or not _is_view(other) else list(other.outputs())
        if any(result.debugName() not in own and _is_used_after(node, result) for result in results):
            raise ImportFailure("it changes a tensor of which another view is used later")


def _written(
    converter: PyTorchOpConverter, view: torch.Node, result: relay.Expr, outputs: dict[str, Any]
) -> relay.Expr:
    """The tensor below `view`, with `result` in place of the view."""
    if mutates(view):
        return result
    base, *settings = (outputs[value.debugName()] for value in view.inputs())
    shape = list(converter.infer_shape_with_prelude(base))
    if not all(isinstance(size, int) for size in shape):
        raise ImportFailure("it changes part of a tensor whose shape is known only at run time")
    if view.kind() in RESHAPES:
        return relay.reshape(result, shape)
    if view.kind() in TRANSPOSES:
        return relay.transpose(result, _inverse(view.kind(), settings, len(shape)))
    axis, numbers = settings[0] % len(shape), [as_number(each) for each in settings[1:]]
    unknown = [number is None and given is not None for number, given in zip(numbers, settings[1:])]
    if unknown == [True]:
        return _replaced_at(base, result, axis, settings[1], shape)
    if unknown == [False, True, False] and numbers[2] in (None, 1):
        first = slice(numbers[0], None).indices(shape[axis])[0]
        return _replaced_from(converter, base, result, axis, first, shape)
    is_to_end = len(numbers) > 1 and (numbers[1] is None or numbers[1] >= shape[axis])
    if unknown == [True, False, False] and is_to_end and numbers[2] in (None, 1):
        return _replaced_from(converter, base, result, axis, None, shape)
    if any(unknown):
        raise ImportFailure("it changes part of a tensor, and which part is known only at run time")
    if view.kind() == "aten::select":
        begin = (numbers[0] or 0) % shape[axis]
        end, step = begin + 1, 1
        result = relay.expand_dims(result, axis)
    else:
        begin, end, step = slice(*numbers).indices(shape[axis])
    if (begin, end, step) == (0, shape[axis], 1):
        return result
    return _replaced(base, result, axis, range(begin, end, step), shape)


def _replaced(base: relay.Expr, part: relay.Expr, axis: int, places: range, shape: list[int]) -> relay.Expr:
    """`base` with `part` at these places of an axis; TVM's `strided_set` is wrong when fused."""
    if not places:
        return base
    taken, source = np.zeros(shape[axis], "bool"), np.zeros(shape[axis], "int32")
    taken[list(places)] = True
    source[list(places)] = range(len(places))
    spread = relay.take(part, relay.const(source), axis)
    mask = taken.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    # Each element is selected from two: a few of these in a row, fused, take minutes to compile.
    return relay.annotation.stop_fusion(relay.where(relay.const(mask), spread, base))


def _replaced_at(
    base: relay.Expr, part: relay.Expr, axis: int, place: relay.Expr, shape: list[int]
) -> relay.Expr:
    """`base` with `part` at a place of an axis that is known only at run time, and perhaps negative."""
    places = np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - axis - 1))
    place = relay.cast(place, "int64")
    is_there = (relay.equal(relay.const(each, "int64"), place) for each in (places, places - shape[axis]))
    return relay.annotation.stop_fusion(
        relay.where(relay.logical_or(*is_there), relay.expand_dims(part, axis), base)
    )


def _replaced_from(
    converter: PyTorchOpConverter,
    base: relay.Expr,
    part: relay.Expr,
    axis: int,
    first: int | None,
    shape: list[int],
) -> relay.Expr:
    """`base` with `part`, of a length known only at run time, from a place of an axis on, or at its end."""
    zero, extent = relay.const(0, "int64"), relay.const(shape[axis], "int64")
    count = relay.take(relay.shape_of(part, "int64"), relay.const(axis))
    begin = relay.subtract(extent, count) if first is None else relay.const(first, "int64")
    places = relay.subtract(relay.const(np.arange(shape[axis]), "int64"), begin)  # in the part
    is_there = relay.logical_and(relay.greater_equal(places, zero), relay.less(places, count))
    one = [1 if each == axis else size for each, size in enumerate(shape)]
    none = relay.zeros(one, converter.infer_type_with_prelude(part).dtype)  # stands for all that is not there
    spread = relay.take(relay.concatenate([part, none], axis), relay.maximum(places, zero), axis, mode="clip")
    mask = relay.reshape(is_there, [-1 if each == axis else 1 for each in range(len(shape))])
    return relay.annotation.stop_fusion(relay.where(mask, spread, base))


def _inverse(kind: str, settings: list[Any], rank: int) -> list[int]:
    if kind == "aten::permute":
        axes = [axis % rank for axis in settings[0]]
        return [axes.index(axis) for axis in range(rank)]
    first, second = settings if settings else (0, rank - 1)
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return axes
