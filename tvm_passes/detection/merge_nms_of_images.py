"""Merge the NMS of several images into one, of whose results each image takes its row."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_op

from ..engine.expressions import is_same, op_name, static_shape
from ..engine.graph import Graph, children
from ..engine.rule import Match, Refusal, Rule, RulePass

NMS = "topi_ext.batched_nms"
# A node's children from this one on have a scope of their own: variables that are not known outside, or a
# condition under which they are computed.
FIRST_IN_SCOPE = {relay.Function: 0, relay.If: 1, relay.Match: 1, relay.Let: 2}


class Position(NamedTuple):
    """Where an NMS is in a graph: two in the same position do not depend on each other."""

    rank: int  # the number of NMS on the longest path to it
    scopes: frozenset[tuple[relay.Expr, int]]  # that use it: each a node, and which of its children


class NMSOfImage(Rule):
    """Replace `nms(x)` and `nms(y)` with rows of one `nms` of the batch of x and y.

    Why legal: the operator computes each item of a batch by itself. The NMS have the same attributes, types
    and thresholds. They are used in the same functions and branches, so each variable that one of them
    reads is known wherever the merged one is used, and nothing is computed that was not before.

    They are also of the same rank, the number of NMS on the longest path to them. Along any path, each NMS
    has a greater rank than those before it, so none depends on another of its rank. Since a merged NMS has
    the rank of its parts, merged ones do not depend on each other in a cycle either.
    """

    pattern = is_op(NMS)(None)

    def where(self, match: Match) -> bool:
        return len(_beside(match)) > 1

    def plan(self, match: Match) -> list[relay.Call] | Refusal:
        """The NMS to merge, this one among them."""
        if any(static_shape(argument) is None for argument in match.root.args):
            return Refusal("the number of boxes is known only at run time")
        alike = _beside(match)
        for what, are_same in COMPARED.items():
            alike = [each for each in alike if are_same(match.root, each)]
            if len(alike) == 1:
                return Refusal(f"no NMS beside it has the same {what}")
        return alike

    def rewrite(self, match: Match, plan: list[relay.Call]) -> relay.Expr:
        notes = match.graph.notes.setdefault(NMSOfImage, {})
        leader, row = plan[0], relay.const(plan.index(match.root))
        if leader not in notes:  # one call, of which each image takes its row
            notes[leader] = _merged(plan)
        results = (relay.TupleGetItem(notes[leader], index) for index in range(2))
        return relay.Tuple([relay.take(result, row, axis=0) for result in results])


class MergeNMSOfImages(RulePass):
    """Merge the NMS of several images into one with an axis of images, in each stage of a detector.

    On a GPU, an NMS is a chain of short steps, each of which waits for the one before it: one of eight
    images takes about as long as one of a single image.

    >>> images = [relay.var(name, shape=(9, 4)) for name in ("left", "right")]
    >>> scores, ids = relay.var("scores", shape=(9,)), relay.var("ids", shape=(9,), dtype="int64")
    >>> nms = [topi_ext.batched_nms(boxes, scores, ids, 0.5, max_output_size=5) for boxes in images]
    >>> mod = tvm.IRModule.from_expr(relay.Tuple([relay.TupleGetItem(each, 0) for each in nms]))
    >>> print(tvm_passes.as_text(tvm_passes.Canonicalize()(tvm_passes.MergeNMSOfImages()(mod))))
    def @main(%left: Tensor[(9, 4), float32], %scores: Tensor[(9), float32],
        %ids: Tensor[(9), int64], %right: Tensor[(9, 4), float32]) -> (Tensor[(5), int64],
        Tensor[(5), int64]) {
      %0 = expand_dims(%left, axis=0);
      %1 = expand_dims(%right, axis=0);
      %2 = (%0, %1);
      %3 = expand_dims(%scores, axis=0);
      %4 = expand_dims(%scores, axis=0);
      %5 = (%3, %4);
      %6 = expand_dims(%ids, axis=0);
      %7 = expand_dims(%ids, axis=0);
      %8 = (%6, %7);
      %9 = concatenate(%2);
      %10 = concatenate(%5);
      %11 = concatenate(%8);
      %12 = topi_ext.batched_nms(%9, %10, %11, 0, 0.5f, 0f, has_score_threshold=0,
          has_valid_count=0, max_output_size=5);
      %13 = %12.0;
      %14 = %12.0;
      %15 = take(%13, 0, axis=0);
      %16 = take(%14, 1, axis=0);
      (%15, %16)
    }
    """

    rules = (NMSOfImage,)


def _beside(match: Match) -> list[relay.Call]:
    """The NMS in the same position as this one; none if it has an axis of images already."""
    notes = match.graph.notes.setdefault(Position, {})
    if "all" not in notes:
        notes["all"] = _positions(match.graph)
    positions: dict[relay.Call, Position] = notes["all"]
    if match.root not in positions:
        return []
    return [nms for nms, position in positions.items() if position == positions[match.root]]


def _positions(graph: Graph) -> dict[relay.Call, Position]:
    """Where each NMS without an axis of images is."""
    ranks: dict[relay.Expr, int] = {}
    for node in graph.nodes:
        ranks[node] = max((ranks[child] + _is_nms(child) for child in children(node)), default=0)
    scopes: dict[relay.Expr, set[tuple[relay.Expr, int]]] = defaultdict(set)
    for node in reversed(graph.nodes):
        first = FIRST_IN_SCOPE.get(type(node))
        for place, child in enumerate(children(node)):
            is_inside = first is not None and place >= first
            scopes[child] |= {(node, place)} if is_inside else scopes[node]
    of_images = [node for node in graph.nodes if _is_nms(node) and len(node.args[0].checked_type.shape) == 2]
    return {nms: Position(ranks[nms], frozenset(scopes[nms])) for nms in of_images}


def _is_nms(node: relay.Expr) -> bool:
    return op_name(node) == NMS


def _have_same_attributes(one: relay.Call, other: relay.Call) -> bool:
    return structural_equal(one.attrs, other.attrs)


def _have_same_types(one: relay.Call, other: relay.Call) -> bool:
    return all(structural_equal(a.checked_type, b.checked_type) for a, b in zip(one.args, other.args))


def _have_same_thresholds(one: relay.Call, other: relay.Call) -> bool:
    return all(map(is_same, one.args[4:], other.args[4:]))


COMPARED = {
    "attributes": _have_same_attributes,
    "types": _have_same_types,
    "thresholds": _have_same_thresholds,
}


def _merged(images: list[relay.Call]) -> relay.Call:
    leader = images[0]
    tensors = 4 if leader.attrs["has_valid_count"] else 3  # the other arguments serve all images
    batches = [_batch([image.args[place] for image in images]) for place in range(tensors)]
    return relay.Call(leader.op, [*batches, *leader.args[tensors:]], leader.attrs)


def _batch(images: list[relay.Expr]) -> relay.Expr:
    # No `stack`: other passes know that this undoes the split of a batch into squeezed images.
    return relay.concatenate([relay.expand_dims(image, 0) for image in images], 0)
