"""Keep fused functions from computing the same values again and again."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from topi_ext.corrections.reshape import only_tells_sizes

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard
from tvm.relay.op import OpPattern

from ..analysis.operators import reads
from ..engine.expressions import op_name
from ..engine.graph import Graph, children, with_children
from ..engine.rule import Match, Rule, RulePass

STOP = "annotation.stop_fusion"
COMPUTED = (relay.Call, relay.Tuple, relay.TupleGetItem)
MAX_OPERATORS = 1_000  # in an element's expression: TVM compiles these in seconds; a detector has half


class StopFusionBehindShared(Rule):
    """Write an intermediate result to memory where a fused function would compute it often.

    Why legal: `annotation.stop_fusion` changes no number. TVM computes an element of a fused function as one
    expression, in which a node with two users appears twice, one that both of those use four times, and so
    on: a few NaN-aware maxima or interpolations in a row take minutes to compile, and as long to run.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        notes = match.graph.notes.setdefault(StopFusionBehindShared, {})
        if "shared" not in notes:
            notes["shared"] = _to_be_written(match.graph)
        return match.root in notes["shared"]

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        again = with_children(match.root, children(match.root), match.root.span)
        return relay.annotation.stop_fusion(again)


class StopFusionAroundReshape(Rule):
    """Let a reshape to sizes that are known only at run time be another view of the same memory.

    Why legal: `annotation.stop_fusion` changes no number. Alone, a reshape copies nothing. Fused with
    others, it divides the index of each element by those sizes, in each kernel that reads it, unless it only
    tells sizes that its input has as well.
    """

    data = wildcard()
    pattern = is_op("reshape")(data)

    def where(self, match: Match) -> bool:
        is_dynamic = relay.ty.is_dynamic(match.root.checked_type)
        shape = match.data.checked_type.shape
        return is_dynamic and not only_tells_sizes(match.root.attrs, shape) and not self._is_alone(match)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        data = match.data if op_name(match.data) == STOP else relay.annotation.stop_fusion(match.data)
        return relay.annotation.stop_fusion(with_children(match.root, [match.root.op, data], match.root.span))

    def _is_alone(self, match: Match) -> bool:
        users = match.graph.users(match.root)
        return op_name(match.data) == STOP and all(op_name(user) == STOP for user in users)


class LimitFusion(RulePass):
    """Limit how many operators TVM computes for an element of a fused function.

    >>> x = y = relay.var("x", shape=(8,))
    >>> for _ in range(9):
    ...     y = relay.add(relay.exp(y), y)
    >>> mod = tvm_passes.LimitFusion()(tvm.IRModule.from_expr(relay.Function([x], y)))
    >>> print(tvm_passes.as_text(mod).count("stop_fusion"))
    1
    """

    rules = (StopFusionAroundReshape, StopFusionBehindShared)


def _to_be_written(graph: Graph) -> set[relay.Expr]:
    """The shared results that make up most of the expressions that are too large."""
    fused = _fused(graph)
    sizes: dict[relay.Expr, int] = {}
    written: set[relay.Expr] = set()

    def size(node: relay.Expr) -> int:
        below = sum(sizes[child] for child in children(node) if child in fused)
        return isinstance(node, relay.Call) + _times(node) * below

    for node in graph.nodes:
        sizes[node] = size(node)
        while sizes[node] > MAX_OPERATORS:
            within, times = _expression(node, fused)
            shared = [part for part in within if times[part] > 1 and _is_tensor(part)]
            if not shared:
                break  # it is large, but nothing is computed twice
            most = max(shared, key=lambda part: (times[part] - 1) * sizes[part])
            written.add(most)
            fused.remove(most)
            for part in within:
                sizes[part] = size(part)
    return written


def _expression(root: relay.Expr, fused: set[relay.Expr]) -> tuple[list[relay.Expr], Counter[relay.Expr]]:
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
            stack += [(child, False) for child in children(node) if child in fused]
    times = Counter({root: 1})
    for node in reversed(order):
        for child in children(node):
            if child in fused:
                times[child] += times[node] * _times(node)
    return order, times


def _times(node: relay.Expr) -> int:
    """How often an operand is computed for an operator: again for each of its results."""
    splits = isinstance(node, relay.Call) and isinstance(node.checked_type, relay.TupleType)
    return reads(node) * (len(node.checked_type.fields) if splits else 1)


class _Dominator(NamedTuple):
    """The first node that all paths from a node to the result go through."""

    node: relay.Expr
    depth: int
    kind: int  # of the least fusible node in between, this one included


def _fused(graph: Graph) -> set[relay.Expr]:
    """The nodes that TVM fuses with all of their users: its FuseOps goes by the dominator."""
    dominators: dict[relay.Expr, _Dominator | None] = {}

    def common(nodes: list[relay.Expr]) -> _Dominator | None:
        """Where the paths from several nodes meet."""
        ways = [(node, _depth(dominators[node]), _kind(node, dominators[node])) for node in nodes]
        while True:
            (first, depth, kind), *others = ways
            if all(node.same_as(first) for node, _, _ in others):
                return _Dominator(first, depth, max(kind for _, _, kind in ways))
            deepest = max(depth for _, depth, _ in ways)
            climbed = []
            for node, depth, kind in ways:
                if depth == deepest:
                    above = dominators[node]
                    if above is None:
                        return None
                    node, depth, kind = above.node, above.depth, max(kind, above.kind)
                climbed.append((node, depth, kind))
            ways = climbed

    for node in reversed(graph.nodes):
        users = graph.users(node)
        ends = not users or any(not isinstance(user, COMPUTED) for user in users)
        dominators[node] = None if ends else common(users)
    return {
        node
        for node, above in dominators.items()
        if above is not None
        and above.kind <= OpPattern.INJECTIVE
        and isinstance(node, COMPUTED)
        and _kind(node, above) <= OpPattern.INJECTIVE
    }


def _depth(dominator: _Dominator | None) -> int:
    return dominator.depth + 1 if dominator else 0


def _kind(node: relay.Expr, dominator: _Dominator | None) -> int:
    """TVM's kind of a node: the greater, the less fusible."""
    if isinstance(node, relay.TupleGetItem):
        return OpPattern.INJECTIVE
    if isinstance(node, relay.Tuple):  # the results of a function are written to memory
        return OpPattern.INJECTIVE if dominator else OpPattern.OPAQUE
    kind = node.op.get_attr("TOpPattern") if op_name(node) not in (None, STOP) else None
    return OpPattern.OPAQUE if kind is None else int(kind)


def _is_tensor(node: relay.Expr) -> bool:
    return isinstance(node.checked_type, relay.TensorType)
