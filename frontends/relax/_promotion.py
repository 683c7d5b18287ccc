"""Writes the casts that torch does by itself into an exported graph.

torch computes an elementwise operation in one type, to which it casts all arguments. TVM's importer gives a
number the type of the tensor beside it instead: of integers, `x + 0.5` would be `x`, and `x / 2` rounded. A
number that this type does not hold, such as -1 beside bytes, stops it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
OF_NUMBERS = aten.add, aten.sub, aten.rsub, aten.mul, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge


def write_casts(graph: fx.Graph) -> None:
    """Cast the tensors that elementwise operations take to the type in which these compute."""
    for node in list(graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
            _cast_arguments(graph, node)


def _cast_arguments(graph: fx.Graph, node: fx.Node) -> None:
    first = 1 if node.target is torch.ops.aten.where.self else 0  # behind the condition
    values: list[Any] = [each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args]
    dtype = getattr(node.meta["val"], "dtype", None)
    if dtype == torch.bool and len(values) == 2:  # a comparison
        dtype = torch.result_type(*values)
    if dtype is None or dtype == torch.bool:
        return
    wraps = not dtype.is_floating_point and getattr(node.target, "overloadpacket", None) in OF_NUMBERS
    for at, value in enumerate(values[first:], first):
        if isinstance(value, torch.Tensor) and value.dtype != dtype:
            with graph.inserting_before(node):
                cast = graph.call_function(
                    torch.ops.aten._to_copy.default, (node.args[at],), {"dtype": dtype}
                )
            cast.meta["val"] = value.to(dtype)
            node.update_arg(at, cast)
        elif isinstance(value, (torch.SymInt, torch.SymFloat)):  # of sizes that only the run knows
            with graph.inserting_before(node):
                number = graph.call_function(aten.scalar_tensor.default, (node.args[at],), {"dtype": dtype})
            number.meta["val"] = torch.empty((), dtype=dtype, device="meta")
            node.update_arg(at, number)
        elif wraps and type(value) is int:
            node.update_arg(at, torch.tensor(value).to(dtype).item())
