"""Keep fused functions from computing the same again and again."""

from __future__ import annotations

from collections import Counter

from tvm import relay
from tvm.relay.dataflow_pattern import wildcard
from tvm.relay.op import OpPattern

from ._graph import Graph, children, with_children
from ._matchers import op_name
from ._rule import Match, Rule, RulePass

STOP = "annotation.stop_fusion"
MOST = 1000  # operators in the expression of an element; TVM takes a second for ten times as many
TAPS = {"nearest_neighbor": 1, "linear": 4, "bilinear": 4, "cubic": 16, "bicubic": 16}  # of an image
READS = {  # how often TVM writes what an operator reads into its expression, if that is more than once
    "tanh": 5,
    **dict.fromkeys(("isinf", "nn.leaky_relu", "nn.prelu"), 3),
    **dict.fromkeys(("cosh", "isnan", "sign", "sinh"), 2),
}


class StopFusionBehindShared(Rule):
    """Have an intermediate result written to memory, where a fused function would compute it often.

    Why legal: `annotation.stop_fusion` changes no number. TVM computes an element of a fused function as one
    expression, in which what has two users stands twice, what those have in common four times, and so on: a
    few NaN-aware maxima or interpolations in a row take minutes to compile, and as long to run.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        notes = match.graph.notes.setdefault(StopFusionBehindShared, {})
        if "shared" not in notes:
            notes["shared"] = _to_be_written(match.graph)
        return match.root in notes["shared"]

    def rewrite(self, match: Match) -> relay.Expr:
        again = with_children(match.root, children(match.root), match.root.span)
        return relay.annotation.stop_fusion(again)


class LimitFusion(RulePass):
    """Limit how many operators TVM computes for an element of a fused function.

    >>> x = y = relay.var("x", shape=(8,))
    >>> for _ in range(10):
    ...     y = relay.add(relay.exp(y), y)
    >>> mod = tvm_passes.LimitFusion()(tvm.IRModule.from_expr(relay.Function([x], y)))
    >>> print(tvm_passes.as_text(mod).count("stop_fusion"))
    1
    """

    rules = (StopFusionBehindShared,)


def _to_be_written(graph: Graph) -> set[relay.Expr]:
    """The results with several users that make up most of what is too large, one for each such place."""
    sizes: dict[relay.Expr, int] = {}
    written: set[relay.Expr] = set()
    for node in graph.nodes:
        if not _is_computed_in_place(node):
            continue
        sizes[node] = _size(node, sizes)
        while sizes[node] > MOST:
            within, times = _expression(node, sizes)
            shared = [part for part in within if times[part] > 1 and _is_tensor(part)]
            if not shared:
                break  # as large as it is, nothing is computed twice
            most = max(shared, key=lambda part: (times[part] - 1) * sizes[part])
            written.add(most)
            del sizes[most]
            for part in within:
                if part in sizes:
                    sizes[part] = _size(part, sizes)
            if node not in sizes:
                break
    return written


def _size(node: relay.Expr, sizes: dict[relay.Expr, int]) -> int:
    return isinstance(node, relay.Call) + _reads(node) * sum(sizes.get(child, 0) for child in children(node))


def _reads(node: relay.Expr) -> int:
    name = op_name(node)
    if name is not None and name.startswith(("image.", "nn.upsampling")):
        return TAPS.get(str(getattr(node.attrs, "method", "")), 1)
    return READS.get(name, 1)


def _expression(
    root: relay.Expr, sizes: dict[relay.Expr, int]
) -> tuple[list[relay.Expr], Counter[relay.Expr]]:
    """What is computed for an element of the root, in post-order, and how often."""
    order: list[relay.Expr] = []
    seen: set[relay.Expr] = set()
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child in children(node) if child in sizes]
    times = Counter({root: 1})
    for node in reversed(order):
        for child in children(node):
            if child in sizes:
                times[child] += times[node] * _reads(node)
    return order, times


def _is_computed_in_place(node: relay.Expr) -> bool:
    """Whether TVM puts it into the expression of its users. A field is of a tuple that may be."""
    if isinstance(node, (relay.Tuple, relay.TupleGetItem)):
        return True
    if not isinstance(node, relay.Call) or op_name(node) in (None, STOP):
        return False
    kind = node.op.get_attr("TOpPattern")
    return kind is not None and kind <= OpPattern.INJECTIVE


def _is_tensor(node: relay.Expr) -> bool:
    return isinstance(node.checked_type, relay.TensorType)
