"""Keeps indices inside the tensor that they are indices of, in an exported graph.

torch counts negative ones from the end, and fails at those that are out of range. TVM reads, or writes, what
lies around the tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..errors import ImportFailure

aten = torch.ops.aten
# Operators of a tensor, an axis, and the indices along it.
ALONG_AN_AXIS = {
    aten.gather.default,
    aten.index_select.default,
    aten.scatter.src,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
}


def keep_inside(graph: fx.Graph) -> None:
    """Wrap all indices at the extent of their axis; refuses masks."""
    for node in list(graph.nodes):
        if node.target in ALONG_AN_AXIS:
            source, axis, index = node.args[:3]
            shape = source.meta["val"].shape
            extent = shape[axis] if shape else 1  # of a scalar, the only index is 0
            node.update_arg(2, _wrapped(graph, node, index, extent))
        elif node.target in (aten.index.Tensor, aten.index_put.default):
            source, indices = node.args[:2]
            extents = source.meta["val"].shape
            node.update_arg(
                1,
                [
                    None if index is None else _wrapped(graph, node, index, extent)
                    for index, extent in zip(indices, extents)
                ],
            )


def _wrapped(graph: fx.Graph, node: fx.Node, index: Any, extent: int) -> fx.Node:
    if index.meta["val"].dtype in (torch.bool, torch.uint8):
        raise ImportFailure(
            f"{node.target} ({node.name}) takes as many elements as a mask says, and all shapes must be "
            "fixed: use torch.where"
        )
    with graph.inserting_before(node):
        wrapped = graph.call_function(aten.remainder.Scalar, (index, extent))
    wrapped.meta["val"] = index.meta["val"]
    return wrapped
