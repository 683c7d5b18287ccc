"""Which values of a graph share memory: views, and what operators return that change their input in place."""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any

import torch

# They return their input, if it is already what is asked for.
PERHAPS_SAME = {
    f"aten::{name}"
    for name in ("atleast_1d", "atleast_2d", "atleast_3d", "contiguous", "dropout", "to", "type_as")
}
PERHAPS_VIEWS = {
    "aten::flatten",
    "aten::ravel",
    "aten::reshape",
    "aten::reshape_as",
}  # where strides allow it
PACKING = {"prim::ListConstruct", "prim::TupleConstruct"}
UNPACKING = {"prim::ListUnpack", "prim::TupleUnpack"}
LISTS = PACKING | UNPACKING
OF_EACH = {"aten::broadcast_tensors", "aten::meshgrid"}  # lists of views of the tensors in a list
# They change a tensor's shape or metadata in place, but none of its elements.
SHAPE_IN_PLACE = {
    f"aten::{name}_"
    for name in ("detach", "requires_grad", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
}
COMPARISONS = {"aten::__is__", "aten::__isnot__"}


def mutates(node: torch.Node) -> bool:
    """Whether an operator changes its first input."""
    kind = node.kind()
    if kind in SHAPE_IN_PLACE | COMPARISONS:
        return False
    in_place = (kind.endswith("_") and not kind.endswith("__")) or kind.startswith("aten::__i")
    return in_place and node.outputsSize() == 1


def shares(node: torch.Node) -> bool | None:
    """Whether results share the memory of the first input; None if that depends on strides not known here."""
    kind = node.kind()
    if kind in LISTS | OF_EACH | SHAPE_IN_PLACE or mutates(node):
        return True
    if kind in PERHAPS_SAME | PERHAPS_VIEWS:
        return _shares_perhaps(node)
    if node.schema() == "(no schema)":
        return False
    results = torch._C.parse_schema(node.schema()).returns
    shared = [result.alias_info for result in results if result.alias_info is not None]
    return any(not alias.is_write for alias in shared)


def _shares_perhaps(node: torch.Node) -> bool | None:
    kind, names = node.kind(), [each.name for each in torch._C.parse_schema(node.schema()).arguments]
    if "copy" in names and node.inputsAt(names.index("copy")).toIValue() is True:
        return False
    types: list[Any] = [value.type() for value in (node.inputsAt(0), node.output())]
    before, after = types
    dtypes = [type_.dtype() for type_ in types if type_.kind() == "TensorType"]
    if len(dtypes) == 2 and None not in dtypes and dtypes[0] != dtypes[1]:
        return False
    if len(dtypes) < 2 or None in (before.sizes(), before.strides(), after.sizes(), after.strides()):
        return None
    if kind in PERHAPS_SAME:
        return before.sizes() == after.sizes() and before.strides() == after.strides()
    memory = torch.empty_strided(before.sizes(), before.strides(), device="meta")
    try:
        memory.view(after.sizes())
    except RuntimeError:  # which says that the elements are not in this order
        return False
    return True


def taken_by(value: torch.Value) -> torch.Node:
    """The operator that takes a value out of the one below it; for an item of a list, what gives the list."""
    node = value.node()
    return node.inputsAt(0).node() if node.kind() in UNPACKING else node


def below(value: torch.Value) -> torch.Value | None:
    """The tensor whose memory a value shares, or None for the one that owns it."""
    node = taken_by(value)
    if node.kind() in LISTS:
        return node.inputsAt(value.offset()) if node is not value.node() else None
    if shares(node) is False:
        return None
    given = node.inputsAt(0)
    return given.node().inputsAt(value.offset()) if given.node().kind() in PACKING else given


def path_to_owner(value: torch.Value) -> list[torch.Value]:
    """The value, what it is a view of, and so on, to the tensor that owns the memory."""
    path = [value]
    while (next_one := below(path[-1])) is not None:
        path.append(next_one)
    return path


def aliases(owner: torch.Value, node: torch.Node) -> list[torch.Value]:
    """All values before `node` that share the owner's memory, in the order of the graph, `owner` first."""
    found, seen = [owner], {owner.debugName()}
    for value in found:
        for use in value.uses():
            shared = use.user.kind() in LISTS or (use.offset == 0 and shares(use.user) is not False)
            if not shared or not use.user.isBefore(node):
                continue
            new = [each for each in use.user.outputs() if each.debugName() not in seen]
            found += new
            seen.update(each.debugName() for each in new)
    return [owner, *sorted(found[1:], key=functools.cmp_to_key(_order))]


def _order(one: torch.Value, other: torch.Value) -> int:
    return -1 if one.node().isBefore(other.node()) else int(one.node().isAfter(other.node()))


def is_used_after(value: torch.Value, node: torch.Node) -> bool:
    return any(use.user.isAfter(node) for use in value.uses())


def is_read_before(owner: torch.Value, node: torch.Node) -> bool:
    """Whether an element of a tensor, or of a view of it, is read before `node` changes it."""
    shared = aliases(owner, node)
    names = {value.debugName() for value in shared}
    users = chain.from_iterable((use.user for use in value.uses()) for value in shared)
    return any(
        user.isBefore(node) and not {output.debugName() for output in user.outputs()} & names
        for user in users
    )
