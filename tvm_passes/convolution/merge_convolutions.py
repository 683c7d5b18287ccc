"""Merge convolutions of one tensor into one, of which each reader takes its filters."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topi_ext.conv2d_nhwc.op import problem_of
from topi_ext.conv2d_nhwc.problem import Problem

from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.convolution import as_constant
from ..analysis.operators import keeps_order
from ..engine.expressions import constant, is_injective, op_name
from ..engine.graph import Graph
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .fused_call import FusedCall


class Group(NamedTuple):
    """Convolutions that differ in their filters only, and the first filter of one among those of all."""

    members: list[relay.Call]
    first: int


class OfSameData(Rule):
    """Replace `conv2d_nhwc(x, v)` and `conv2d_nhwc(x, w)` with filters of `conv2d_nhwc(x, v and w)`.

    Why legal: each filter has a result of its own. TVM cuts them out in the kernel that reads them.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)

    def where(self, match: Match) -> bool:
        return len(_alike(match.graph, match.root)) > 1

    def plan(self, match: Match) -> Group | Answer | Refusal:
        reason = _why_not(match.graph, match.root)
        if reason:
            return Refusal(reason)
        members = [each for each in _alike(match.graph, match.root) if _why_not(match.graph, each) is None]
        if len(members) < 2:
            return NO_MATCH  # the reason is that of the others
        place = members.index(match.root)
        return Group(members, sum(map(_filters, members[:place])))

    def rewrite(self, match: Match, plan: Group) -> relay.Expr:
        notes = match.graph.notes.setdefault(OfSameData, {})
        leader = plan.members[0]
        if leader not in notes:  # one call, of which each member takes its filters
            notes[leader] = _merged(plan.members)
        last = plan.first + _filters(match.root)
        return relay.strided_slice(notes[leader], [plan.first], [last], axes=[3])


class MergeConvolutions(RulePass):
    """Merge convolutions of the same tensor that differ in their filters only, such as a detector's heads.

    Small convolutions take as long to start as to run, and each reads the whole tensor. They are merged where
    TVM can cut out the results in the kernels that read them, so not in front of other convolutions.

    >>> x = relay.var("x", shape=(1, 32, 32, 128), dtype="float16")
    >>> scores, boxes = (relay.const(np.ones((count, 1, 1, 128), "float16")) for count in (3, 12))
    >>> heads = [relay.exp(topi_ext.conv2d_nhwc(x, weight)) for weight in (scores, boxes)]
    >>> mod = tvm.IRModule.from_expr(relay.Function([x], relay.Tuple(heads)))
    >>> mod = tvm_passes.MergeConvolutions()(mod)
    >>> (merged,) = tvm_passes.engine.graph.calls_of(mod, "topi_ext.conv2d_nhwc")
    >>> print(merged.checked_type)
    Tensor[(1, 32, 32, 15), float16]
    """

    rules = (OfSameData,)


def _alike(graph: Graph, conv: relay.Call) -> list[relay.Call]:
    """The convolutions of the same data that differ in their filters only, this one among them."""
    data, kind = conv.args[0], _kind(conv)
    users = (user for user in dict.fromkeys(graph.users(data)) if op_name(user) == op_name(conv))
    return [user for user in users if user.args[0].same_as(data) and _kind(user) == kind]


def _kind(conv: relay.Call) -> Problem:
    """What convolutions must have in common."""
    problem = problem_of([argument.checked_type for argument in conv.args], conv.attrs)
    return replace(problem, filters=0, bias=None, weight_id="")


def _why_not(graph: Graph, conv: relay.Call) -> str | None:
    """Why the filters of this convolution cannot be among those of another; None if they can."""
    call = FusedCall(conv)
    if call.groups > 1:
        return "the convolution is grouped"
    if call.block_size > 1:
        return "the filters are shuffled into pixels"
    if call.residual is not None:
        return "a residual with as many channels is added"
    for name, given in call.by_filter().items():
        if constant(given) is None:
            return f"the {name} is not constant"
    if not _is_cut_where_read(graph, conv):
        return "the result would be copied for what reads it"
    return None


def _is_cut_where_read(graph: Graph, node: relay.Expr) -> bool:
    """Whether TVM computes a slice of this result in the one kernel that reads it."""
    users = graph.users(node)
    while len(users) == 1 and (keeps_order(users[0]) or isinstance(users[0], relay.Tuple)):
        users = graph.users(users[0])
    return len(users) == 1 and is_injective(users[0])


def _filters(conv: relay.Call) -> int:
    return int(conv.args[1].checked_type.shape[0])


def _merged(members: list[relay.Call]) -> relay.Call:
    calls = [FusedCall(member) for member in members]
    merged = calls[0]
    if any(call.bias is not None for call in calls):
        none = (relay.const(np.zeros(_filters(member), "float32")) for member in members)
        biases = [call.bias if call.bias is not None else zeros for call, zeros in zip(calls, none)]
        merged.bias = _concatenated(biases, "float32")
    merged.weight = _concatenated([call.weight for call in calls], merged.weight.data.dtype)
    for name in ("slope", "scale"):
        if (given := getattr(merged, name)) is not None:
            setattr(merged, name, _concatenated([getattr(call, name) for call in calls], given.data.dtype))
    return merged.call()


def _concatenated(constants: list[relay.Constant], dtype: str) -> relay.Constant:
    arrays = [np.asarray(constant(each)) for each in constants]
    return as_constant(np.concatenate(arrays), dtype)
