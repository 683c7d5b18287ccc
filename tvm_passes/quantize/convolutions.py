"""The convolutions of a network: their names, and which of them can be computed in int8."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from topi_ext.conv2d_nhwc.op import MAX_PRODUCTS

from tvm import relay

from ..analysis.precision import CONV2D_NHWC, is_float32
from ..convolution.fused_call import FusedCall
from ..engine.expressions import constant, op_name
from ..engine.graph import Graph, children


def convolutions_of(graph: Graph) -> dict[relay.Call, str]:
    """{convolution: its name} for those in float32 of constant weights, in the order of the graph.

    A name is the digest of the weights, followed by how many convolutions before have the same weights, if
    any: a detector's head is one convolution for each level of its pyramid.
    """
    outside = _outside_of_branches(graph.root)
    names: dict[relay.Call, str] = {}
    seen: dict[str, int] = {}
    for node in graph.nodes:
        if op_name(node) != CONV2D_NHWC or not is_float32(node) or node not in outside:
            continue
        weights = constant(node.args[1])
        if weights is None or weights.dtype != np.float32:
            continue
        digest = hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=6)
        digest.update(str(weights.shape).encode())
        name = digest.hexdigest()
        seen[name] = seen.get(name, 0) + 1
        names[node] = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return names


def why_not_int8(graph: Graph, conv: relay.Call) -> str | None:
    """Why one of `convolutions_of` cannot be computed in int8, or None."""
    call = FusedCall(conv)
    weights = np.asarray(constant(call.weight))
    if call.groups == len(weights) > 1 and weights.shape[3] == 1:
        return "the convolution is depthwise: it multiplies too little to gain from int8"
    if math.prod(weights.shape[1:]) > MAX_PRODUCTS:
        return "a sum of that many products may be too large for int32"
    if not np.isfinite(weights).all():
        return "a weight is not finite"
    if not _reads_a_convolution(graph, conv):
        return "it is the first convolution, which reads the image"
    return None


def _reads_a_convolution(graph: Graph, conv: relay.Call) -> bool:
    """Whether the data is computed from the results of other convolutions."""
    behind = graph.notes.setdefault(_reads_a_convolution, {})
    if not behind:
        for node in graph.nodes:
            below = children(node)[:2] if op_name(node) == CONV2D_NHWC else children(node)
            behind[node] = any(op_name(each) == CONV2D_NHWC or behind.get(each) for each in below)
    return bool(behind[conv])


def _outside_of_branches(root: relay.Expr) -> set[relay.Expr]:
    """The nodes that every call computes: not those in branches, nor in functions inside."""
    found: set[relay.Expr] = set()
    waiting = [root.body if isinstance(root, relay.Function) else root]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if isinstance(node, relay.If):
            waiting.append(node.cond)
        elif not isinstance(node, (relay.Function, relay.Let, relay.Match)):
            waiting += children(node)
    return found
