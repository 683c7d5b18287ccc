"""Fold a slice of the first k kept boxes into the NMS."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.shape_values import Clamped, Dim, all_equal, shape_values
from ..engine.expressions import op_name
from ..engine.rule import Match, Refusal, Rule, RulePass
from .selection import Selection

MAX_WANTED = 2**20  # an NMS with a `max_output_size` allocates that many indices


class FirstOfSelection(Selection, Rule):
    """Replace `nms(boxes)[:k]` with `nms(boxes, max_output_size=k)`.

    Why legal: boxes are kept greedily in descending order of score, so the first k do not depend on whether
    the NMS stops after them.
    """

    first, last, steps = wildcard(), wildcard(), wildcard()
    dynamic = is_op("dyn.strided_slice")(Selection.selection, first, last, steps)
    static = is_op("strided_slice")(Selection.selection)
    pattern = dynamic | static

    def where(self, match: Match) -> bool:
        return len(match.root.checked_type.shape) == 1

    def plan(self, match: Match) -> int | Refusal:
        """The plan is the number of boxes to keep."""
        if str(match.root.attrs.slice_mode) != "end" or str(match.selection.attrs.slice_mode) != "size":
            return Refusal("the slice is given by a size, not an end")
        if not all_equal(match.graph, match.begin, 0) or not all_equal(match.graph, match.strides, 1):
            return Refusal("the slice does not take the leading indices in order")
        begins, steps = _begins_and_steps(match)
        if begins != [0]:
            return Refusal("the slice does not begin at the first box")
        if steps != [1]:
            return Refusal("the slice has a stride other than 1")
        wanted = _wanted(match)
        if wanted is None:
            return Refusal("the number of boxes to keep is known only at run time")
        if wanted > MAX_WANTED:
            return Refusal(f"room for {wanted} boxes would take more memory than the rewrite saves")
        # The bounds of the slice also use the length; they disappear with it.
        users = [user for user in match.graph.users(match.selection) if op_name(user) != "shape_of"]
        if users != [match.root] or match.used_elsewhere(match.nms):
            return Refusal("the kept boxes have users besides the slice")
        return wanted

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        nms, given = match.nms, int(match.nms.attrs["max_output_size"])
        attrs = {name: int(nms.attrs[name]) for name in list(nms.attrs.keys())}
        attrs["max_output_size"] = plan if given < 0 else min(plan, given)
        fewer = relay.Call(nms.op, nms.args, tvm.ir.make_node("DictAttrs", **attrs))
        indices, _, _, strides = match.selection.args
        count = relay.expand_dims(relay.TupleGetItem(fewer, 1), 0)
        args = [relay.TupleGetItem(fewer, indices.index), match.begin, count, strides]
        return relay.Call(match.selection.op, args, match.selection.attrs)


class FoldPostNMSTopK(RulePass):
    """Replace `nms(boxes)[:k]` with an NMS that stops at k boxes.

    >>> import frontends, torch, torchvision
    >>> class Detect(torch.nn.Module):
    ...     def forward(self, boxes, scores, ids):
    ...         return torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:5]
    >>> detections = torch.rand(9, 4), torch.rand(9), torch.arange(9)
    >>> mod, _ = frontends.from_pytorch(Detect(), detections)
    >>> mod = tvm_passes.RestoreBatchedNMS()(mod)
    >>> print(tvm_passes.as_text(tvm_passes.FoldPostNMSTopK()(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %scores: Tensor[(9), float32],
        %ids: Tensor[(9), int64], input_names=["boxes", "scores", "ids"], output_names=["output"])
        -> Tensor[(?), int64] {
      %0 = topi_ext.batched_nms(%boxes, %scores, %ids, 0, 0.5f, 0f, has_score_threshold=0,
          has_valid_count=0, max_output_size=5);
      %1 = %0.1;
      %2 = %0.0;
      %3 = expand_dims(%1, axis=0);
      dyn.strided_slice(%2, const([0]), %3, const([1]), slice_mode="size")
    }
    """

    rules = (FirstOfSelection,)


def _begins_and_steps(match: Match) -> tuple[list[Any] | None, ...]:
    if match.dynamic is None:
        attrs = match.root.attrs
        return [int(value) for value in attrs.begin], [int(value) for value in attrs.strides]
    return tuple(
        list(values) if values is not None else None
        for values in (shape_values(match.graph, bound) for bound in (match.first, match.steps))
    )


def _wanted(match: Match) -> int | None:
    """The maximum number of boxes that the slice takes, or None if it is unknown."""
    if match.dynamic is None:
        (end,) = match.root.attrs.end
        return int(end) if int(end) >= 0 else None
    values = shape_values(match.graph, match.last)
    (end,) = values if values is not None and values.size == 1 else (None,)
    if isinstance(end, Clamped) and end.dim == Dim(match.selection, 0):
        return end.bound
    return end if isinstance(end, int) and end >= 0 else None
