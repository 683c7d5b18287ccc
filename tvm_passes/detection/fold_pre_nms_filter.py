"""Fold a filter before an NMS into the NMS itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.bounds import is_bounded
from ..analysis.filters import LOWEST, conditions, lower_bound
from ..analysis.row_by_row import as_long_as, before_taking, mask_in_front, rows_before_taking
from ..engine.expressions import op_name, scalar
from ..engine.rule import Match, Refusal, Rule, RulePass
from .selection import Selection, select


class NmsOfFiltered(Selection, Rule):
    """Replace `x[rows][nms(boxes[rows], scores[rows], ids[rows])]`, rows = where(mask), with `x[nms(...)]`.

    Why legal: gathering rows in order keeps the order of the boxes, so an NMS that skips the rows that the
    mask removes keeps the same boxes. It skips rows with a score not above its threshold: a mask that tests
    just that becomes the threshold; any other mask sets the scores of the rows it removes to -inf. Either way
    a score of NaN or -inf is skipped too, so an existing threshold or the mask must already exclude such
    scores.
    """

    taken = wildcard()
    pattern = is_op("take")(taken, Selection.selection) | is_op("shape_of")(Selection.selection)

    def where(self, match: Match) -> bool:
        return len(match.nms.args[0].checked_type.shape) == 2 and mask_in_front(match.nms.args[1]) is not None

    def plan(self, match: Match) -> _Unfiltered | Refusal:
        plans = match.graph.notes.setdefault(
            NmsOfFiltered, {}
        )  # one for all users of a selection: either all are rewritten, or none
        if match.selection not in plans:
            plans[match.selection] = _unfiltered(match)
        return plans[match.selection]

    def rewrite(self, match: Match, plan: _Unfiltered) -> relay.Expr:
        if match.taken is None:
            return relay.Call(match.root.op, [plan.selection], match.root.attrs)
        taken = before_taking(match.taken, plan.mask)
        return relay.Call(match.root.op, [taken, plan.selection], match.root.attrs)


class FoldPreNMSFilter(RulePass):
    """Replace an NMS of the rows that a mask selects with an NMS of all rows that has a score threshold.

    >>> import frontends, torch, torchvision
    >>> class Detect(torch.nn.Module):
    ...     def forward(self, boxes, scores, ids):
    ...         rows = torch.where(scores > 0.05)[0]
    ...         boxes, scores, ids = boxes[rows], scores[rows], ids[rows]
    ...         return boxes[torchvision.ops.batched_nms(boxes, scores, ids, 0.5)]
    >>> detections = torch.rand(9, 4), torch.rand(9), torch.arange(9)
    >>> mod, _ = frontends.from_pytorch(Detect(), detections)
    >>> mod = tvm_passes.RestoreBatchedNMS()(mod)
    >>> print(tvm_passes.as_text(tvm_passes.FoldPreNMSFilter()(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %scores: Tensor[(9), float32],
        %ids: Tensor[(9), int64], input_names=["boxes", "scores", "ids"], output_names=["output"])
        -> Tensor[(?, 4), float32] {
      %0 = topi_ext.batched_nms(%boxes, %scores, %ids, 0, 0.5f, 0.05f, has_score_threshold=1,
          has_valid_count=0, max_output_size=-1);
      %1 = %0.1;
      %2 = %0.0;
      %3 = expand_dims(%1, axis=0);
      %4 = dyn.strided_slice(%2, const([0]), %3, const([1]), slice_mode="size");
      take(%boxes, %4, axis=0)
    }
    """

    rules = (NmsOfFiltered,)


class _Unfiltered(NamedTuple):
    """The mask of the filter, and the indices an NMS of all rows keeps among those that the mask selects."""

    mask: relay.Expr
    selection: relay.Expr


def _unfiltered(match: Match) -> _Unfiltered | Refusal:
    nms, mask = match.nms, mask_in_front(match.nms.args[1])
    if nms.attrs["has_valid_count"]:
        return Refusal("the valid count of the NMS refers to the filtered rows, not to all rows")
    for name, tensor in zip(("boxes", "scores", "class ids"), nms.args):
        if before_taking(tensor, mask) is None:
            return Refusal(f"the {name} are not filtered by the mask that filters the scores")
    tensors = [rows_before_taking(tensor) for tensor in nms.args[:3]]
    if len({as_long_as(tensor) for tensor in (mask, *tensors)}) > 1:
        return Refusal(
            "whether boxes, scores, class ids and mask have equally many rows is known only at run time"
        )
    if not nms.attrs["has_score_threshold"] and not is_bounded(nms.args[1]):
        return Refusal(
            "the filter may keep a score that is NaN or -inf, which an NMS with a score threshold skips"
        )
    for user in match.graph.users(match.selection):
        if op_name(user) != "shape_of" and not _is_taken_from_filtered(user, match.selection, mask):
            return Refusal("the kept indices have uses other than taking rows of the filtered tensors")
    return _Unfiltered(mask, _select(nms, mask))


def _is_taken_from_filtered(user: relay.Expr, selection: relay.Expr, mask: relay.Expr) -> bool:
    return (
        op_name(user) == "take"
        and user.args[1].same_as(selection)
        and before_taking(user.args[0], mask) is not None
        and user.attrs.axis is not None
        and int(user.attrs.axis) == 0
    )


def _select(nms: relay.Call, mask: relay.Expr) -> relay.Expr:
    """The kept indices of an NMS of all boxes that skips those that the mask removes."""
    boxes, scores, class_ids = (before_taking(tensor, mask) for tensor in nms.args[:3])
    _, iou_threshold, threshold = nms.args[3:]
    if not nms.attrs["has_score_threshold"]:
        threshold = relay.const(LOWEST, "float32")
    others = []
    for part in conditions(mask):
        bounds = (lower_bound(part, each, strict=True) for each in _with_fewer_masks(scores))
        bound = next((number for number in bounds if number is not None), None)
        if bound is None or scalar(threshold) is None:
            others.append(part)
        else:
            threshold = relay.const(max(bound, scalar(threshold)), "float32")
    if others:
        lowest = relay.const(LOWEST, nms.args[1].checked_type.dtype)
        scores = relay.where(reduce(relay.logical_and, others), scores, lowest)
    most = int(nms.attrs["max_output_size"])
    return select(
        boxes,
        scores,
        class_ids,
        iou_threshold,
        score_threshold=threshold,
        max_output_size=None if most < 0 else most,
    )


def _with_fewer_masks(scores: relay.Expr) -> Iterator[relay.Expr]:
    """The scores, and what they were before each mask that set some to -inf, which only lowers them."""
    yield scores
    while op_name(scores) == "where" and scalar(scores.args[2]) == LOWEST:
        scores = scores.args[1]
        yield scores
