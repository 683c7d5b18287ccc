"""NMS of the boxes that a filter leaves, as NMS of all boxes that overlooks the others."""

from __future__ import annotations

from functools import reduce

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from .._filters import LOWEST, conditions, is_bounded, lower_bound
from .._matchers import op_name
from .._rule import Match, Rule
from .._selection import Selection, scalar, select
from .row_by_row import as_long_as, before_taking, mask_in_front, rows_before_taking


class NmsOfFiltered(Selection, Rule):
    """Replace `x[rows][nms(boxes[rows], scores[rows], ids[rows])]`, rows = where(mask), with `x[nms(...)]`.

    Why legal: taking rows in order keeps the order of the boxes, so an NMS that leaves out those that the
    mask leaves out keeps the same ones. It leaves out what has a score not above its threshold: the mask
    becomes the threshold where it says that, and else gives the rows that it leaves out a score of -inf.
    Neither keeps a score that is NaN or -inf, so there must be none: by a threshold that was
    there before, or by the mask.
    """

    taken = wildcard()
    pattern = is_op("take")(taken, Selection.selection) | is_op("shape_of")(Selection.selection)

    def where(self, match: Match) -> bool:
        return len(match.nms.args[0].checked_type.shape) == 2 and mask_in_front(match.nms.args[1]) is not None

    def check(self, match: Match) -> str | None:
        return _plan(match)[0]

    def rewrite(self, match: Match) -> relay.Expr:
        mask, selection = _plan(match)[1:]
        if match.taken is None:
            return relay.Call(match.root.op, [selection], match.root.attrs)
        return relay.Call(match.root.op, [before_taking(match.taken, mask), selection], match.root.attrs)


def _plan(match: Match) -> tuple[str | None, relay.Expr, relay.Expr | None]:
    """(why not, the mask, the new selection): one for all users of a selection, or for none."""
    plans = match.graph.notes.setdefault(NmsOfFiltered, {})
    if match.selection not in plans:
        mask = mask_in_front(match.nms.args[1])
        reason = _why_not(match, mask)
        plans[match.selection] = reason, mask, None if reason else _select(match.nms, mask)
    return plans[match.selection]


def _why_not(match: Match, mask: relay.Expr) -> str | None:
    nms = match.nms
    if nms.attrs["has_valid_count"]:
        return "only the first boxes are valid, and those are others before the filter"
    for name, tensor in zip(("boxes", "scores", "class ids"), nms.args):
        if before_taking(tensor, mask) is None:
            return f"the {name} are not taken by the filter that takes the scores"
    tensors = [rows_before_taking(tensor) for tensor in nms.args[:3]]
    if len({as_long_as(tensor) for tensor in (mask, *tensors)}) > 1:
        return "whether boxes, scores, class ids and mask have as many rows is known only at run time"
    if not nms.attrs["has_score_threshold"] and not is_bounded(nms.args[1]):
        return "the filter may leave a score that is NaN or -inf, which no NMS with a score threshold does"
    for user in match.graph.users(match.selection):
        if op_name(user) != "shape_of" and not _is_taken_from_filtered(user, match.selection, mask):
            return "the kept indices are used for more than to take rows from what the filter leaves"


def _is_taken_from_filtered(user: relay.Expr, selection: relay.Expr, mask: relay.Expr) -> bool:
    return (
        op_name(user) == "take"
        and user.args[1].same_as(selection)
        and before_taking(user.args[0], mask) is not None
        and user.attrs.axis is not None
        and int(user.attrs.axis) == 0
    )


def _select(nms: relay.Call, mask: relay.Expr) -> relay.Expr:
    """The kept indices of the NMS of all boxes, without those that the mask leaves out."""
    boxes, scores, class_ids = (before_taking(tensor, mask) for tensor in nms.args[:3])
    _, iou_threshold, threshold = nms.args[3:]
    if not nms.attrs["has_score_threshold"]:
        threshold = relay.const(LOWEST, "float32")
    others = []
    for part in conditions(mask):
        bound = lower_bound(part, _without_masks(scores), strict=True)
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


def _without_masks(scores: relay.Expr) -> relay.Expr:
    """The scores before masks gave -inf to some, which is above no number."""
    while op_name(scores) == "where" and scalar(scores.args[2]) == LOWEST:
        scores = scores.args[1]
    return scores
