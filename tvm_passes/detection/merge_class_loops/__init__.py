"""Loops over classes as one computation with an axis of classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

from ...analysis.bounds import Bound, bound
from ...analysis.filters import LOWEST
from ...engine.expressions import known_shape, location, op_name
from ...engine.graph import Graph
from ...engine.module_pass import Pass
from ...engine.report import PassReport
from ...engine.typed import typed
from ..padding.operators import handle
from ..padding.padded import NotStatic, Padded, Rows
from ..padding.walk import Walk
from .template import NotAlike, Template
from .with_axis import NoRule, WithAxis

SEARCHES = ("argwhere", "topk", "dyn.topk", "topi_ext.batched_nms")


class MergeClassLoops(Pass):
    """Replace what a detector repeats for each class with one computation that has an axis of classes.

    SSD filters the boxes of each class by score, takes the best of them, and concatenates those of all
    classes for an NMS: twenty operators for each of 90 classes. A loop that suppresses within each class is
    the same with an NMS in it.

    Why legal: the concatenated parts must be repetitions of one computation, in which only constants and
    slices of tensors differ. It is computed on padded rows (as `MakeDetectionStatic` does, which refuses what
    padding would change) with an axis of classes in front; then the valid rows are taken, class by class, as
    they were concatenated. What the repetitions compute must have no other use.

    >>> import frontends, torch
    >>> class Best(torch.nn.Module):
    ...     def forward(self, scores):
    ...         best = []
    ...         for one in range(3):
    ...             of_class = scores[:, one]
    ...             best.append(of_class[torch.where(of_class > 0.5)[0]])
    ...         return torch.cat(best)
    >>> mod, _ = frontends.from_pytorch(Best(), [torch.rand(9, 3)])
    >>> print(tvm_passes.as_text(tvm_passes.MergeClassLoops()(mod)))
    def @main(%scores: Tensor[(9, 3), float32], input_names=["scores"], output_names=["output"])
        -> Tensor[(?), float32] {
      %0 = take(%scores, const([0, 1, 2]), axis=1, mode="wrap");
      %1 = transpose(%0, axes=[1, 0]);
      %2 = greater(%1, 0.5f);
      %3 = reshape(%2, newshape=[27]);
      %4 = reshape(%1, newshape=[27]);
      %5 = where(%3, %4, -inff);
      %6 = greater(%5, 0.5f);
      %7 = argwhere(%6);
      %8 = squeeze(%7, axis=[1]);
      take(%5, %8, axis=0)
    }
    """

    def __init__(self) -> None:
        super().__init__(_merged)


def _merged(mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    module, graphs = typed(mod)
    changed = {}
    for name, graph in graphs.items():
        replacements = {}
        for joints in _loops(graph):
            try:
                replacements.update(_at_once(joints))
            except (NotAlike, NotStatic, NoRule) as reason:
                report.refused(report.name, location(joints[0].call), str(reason))
            else:
                report.rewrote(report.name, location(joints[0].call))
        if replacements:
            changed[name] = graph.rebuilt(replacements)
    if not changed:
        return mod
    for name, function in changed.items():
        module.update_func(name, function)
    return relay.transform.InferType()(module)


@dataclass(frozen=True)
class _Joint:
    """A concatenation along the first axis, and what it concatenates in the end.

    A loop that appends to a tensor nests concatenations; `tuples` are those of all of them.
    """

    call: relay.Call
    parts: tuple[relay.Expr, ...]
    tuples: tuple[relay.Tuple, ...]


def _loops(graph: Graph) -> list[list[_Joint]]:
    """The concatenations of what is searched for in a loop, those of as many parts together."""
    found: dict[int, list[_Joint]] = defaultdict(list)
    nested: set[relay.Expr] = set()
    for node in reversed(graph.nodes):  # the outer ones first
        joint = _joint(graph, node)
        if joint is None or len(joint.parts) < 2 or node in nested:
            continue
        nested.update(field for each in joint.tuples for field in each.fields)
        template = Template()
        with suppress(NotAlike):
            template.of(joint.parts)
            if any(op_name(each) in SEARCHES for each in template.nodes):
                found[len(joint.parts)].append(joint)
    return [joints for joints in found.values() if _have_no_other_use(graph, joints)]


def _joint(graph: Graph, node: relay.Expr) -> _Joint | None:
    if op_name(node) != "concatenate" or not isinstance(node.args[0], relay.Tuple):
        return None
    if int(node.attrs.axis) % len(node.checked_type.shape) != 0:
        return None
    parts: list[relay.Expr] = []
    tuples: list[relay.Tuple] = [node.args[0]]
    for field in node.args[0].fields:
        inner = _joint(graph, field) if graph.users(field) == tuples[:1] else None
        parts += inner.parts if inner else [field]
        tuples += inner.tuples if inner else []
    parts = [part for part in parts if getattr(part.checked_type.shape[0], "value", None) != 0]
    return _Joint(node, tuple(parts), tuple(tuples))


def _have_no_other_use(graph: Graph, joints: list[_Joint]) -> bool:
    """Whether what the loop computes of unknown length has no use but in the loop and in these."""
    template = Template()
    for joint in joints:
        template.of(joint.parts)
    inside = template.nodes.union(*(joint.tuples for joint in joints))
    return all(
        user in inside
        for node in template.nodes
        if is_dynamic(node.checked_type)
        for user in graph.users(node)
    )


def _at_once(joints: list[_Joint]) -> dict[relay.Expr, relay.Expr]:
    """What replaces each of the concatenations."""
    classes, template = len(joints[0].parts), Template()
    function = template.function([template.of(joint.parts) for joint in joints])
    walk = Walk(Graph(function), handle)
    became = walk.of(function.body)
    results = became if isinstance(became, tuple) else function.body.fields
    if any(isinstance(result, Padded) and result.axis != 0 for result in results):
        raise NotStatic("the parts are concatenated along an axis without detections")

    variables = dict(zip(template.values, function.params))
    values = {variables[old]: value for old, value in template.values.items()}
    all_classes = WithAxis(classes, values, {variables[old] for old in template.varying})

    def flat(expr: relay.Expr) -> relay.Expr:
        """The rows of all classes, in a row."""
        length, *rest = known_shape(walk.typed(expr))
        return relay.reshape(all_classes.of(expr), [classes * length, *rest])

    flats = [flat(result.expr if isinstance(result, Padded) else result) for result in results]
    replacements = {joint.call: rows for joint, rows in zip(joints, flats)}
    for rows in _distinct(result.rows for result in results if isinstance(result, Padded)):
        places = [at for at, each in enumerate(results) if isinstance(each, Padded) and each.rows == rows]
        mask = flat(rows.valid)
        scores = _best_bounded(places, function.body.fields)
        if scores is not None:  # so that the NMS behind can take the bound for its score threshold
            at, limit = scores
            dtype = walk.dtype(results[at].expr)
            flats[at] = relay.where(mask, flats[at], relay.const(LOWEST, dtype))
            mask = limit.holds(flats[at], dtype)
        valid = relay.squeeze(relay.argwhere(mask), axis=[1])
        for at in places:
            replacements[joints[at].call] = relay.take(flats[at], valid, axis=0)
    return replacements


def _distinct(every: Iterable[Rows]) -> list[Rows]:
    found: list[Rows] = []
    for rows in every:
        if rows not in found:
            found.append(rows)
    return found


def _best_bounded(places: list[int], outputs: Sequence[relay.Expr]) -> tuple[int, Bound] | None:
    """Which of some outputs are scores that a filter bounds, and their bound; None if there are none."""
    vectors = [at for at in places if len(outputs[at].checked_type.shape) == 1]
    bounds = ((at, bound(outputs[at])) for at in vectors)
    return next(((at, limit) for at, limit in bounds if limit is not None), None)
