"""Replace TVM's NMS of rows that hold class, score and box with topi_ext.batched_nms of three tensors."""

from __future__ import annotations

import topi_ext
from topi_ext.batched_nms import one_class

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import known_extent, op_name, scalar, static_shape
from ...engine.rule import Match, Refusal, Rule
from ..selection import in_order
from ..stock_nms import thresholds, why_no_thresholds


class NmsOfRows(Rule):
    """Replace `vision.non_max_suppression` of `vision.get_valid_counts` with `topi_ext.batched_nms`.

    Why legal: get_valid_counts keeps, in order, the rows above the score threshold whose class is not
    negative, and returns their original indices. The operator skips the same rows and returns original
    indices too. Ids are floats and compared by their bits, which differ exactly where the ids do: none is
    negative except -0.0, whose sign is dropped. All these rows must have a score above 0, since TVM
    suppresses no others. Corners may come in any order, and are sorted.
    """

    rows, valid_count, indices, most, iou_threshold = (wildcard() for _ in range(5))
    pattern = is_op("vision.non_max_suppression")(rows, valid_count, indices, most, iou_threshold)

    def plan(self, match: Match) -> relay.Call | Refusal:
        """The call of get_valid_counts that made these rows."""
        attrs, valid = match.root.attrs, _get_valid_counts(match)
        if valid is None:
            return Refusal("the rows, their count and their indices do not come from one get_valid_counts")
        if int(attrs.top_k) > 0:
            return Refusal(f"the NMS considers only the first {int(attrs.top_k)} boxes")
        if int(attrs.score_index) != int(valid.attrs.score_index):
            return Refusal("get_valid_counts reads the score from another column")
        if int(attrs.id_index) >= 0 and int(attrs.id_index) != int(valid.attrs.id_index):
            return Refusal("get_valid_counts reads the class from another column")
        if not attrs.return_indices:
            if not attrs.invalid_to_bottom:
                return Refusal("suppressed rows are not removed: the NMS has invalid_to_bottom=False")
            if 0 not in (int(attrs.score_index), int(valid.attrs.id_index)):
                return Refusal("the NMS treats rows with a negative first column as suppressed")
        return _why_no_rows(match, valid.args[0]) or _why_no_limits(match, valid) or valid

    def rewrite(self, match: Match, plan: relay.Call) -> relay.Expr:
        attrs, valid, rows = match.root.attrs, plan, plan.args[0]
        scores = _column(rows, attrs.score_index)
        if int(valid.attrs.id_index) >= 0:
            has_class = _column(rows, valid.attrs.id_index) >= relay.const(0, "float32")
            scores = relay.where(has_class, scores, _minus_one_like(scores))
        first = int(attrs.coord_start)
        boxes = in_order(relay.strided_slice(rows, [first], [first + 4], axes=[2]), axis=2)
        ids = _bits(_column(rows, attrs.id_index)) if _is_class_aware(match) else one_class(scores)
        iou_threshold, score_threshold = thresholds(match.iou_threshold, _score_threshold(valid))
        size, behind = _room(match)
        nms = topi_ext.batched_nms(
            boxes, scores, ids, iou_threshold, score_threshold=score_threshold, max_output_size=size
        )
        kept, count = relay.TupleGetItem(nms, 0), relay.TupleGetItem(nms, 1)
        if size is not None:
            kept = relay.nn.pad(kept, ((0, 0), (0, behind)), pad_value=-1)
        if attrs.return_indices:
            return relay.Tuple([relay.cast(kept, "int32"), relay.expand_dims(count, 1)])
        taken = relay.take(rows, kept, axis=1, batch_dims=1, mode="clip")
        is_kept = relay.expand_dims(kept >= relay.const(0, "int64"), 2)
        return relay.where(is_kept, taken, _minus_one_like(taken))


def _get_valid_counts(match: Match) -> relay.Call | None:
    """The call of get_valid_counts whose results the NMS takes, or None."""
    wanted = [(match.rows, 1), (match.valid_count, 0)]
    if match.root.attrs.return_indices:  # otherwise nothing reads them
        wanted.append((match.indices, 2))
    if any(not isinstance(part, relay.TupleGetItem) or part.index != index for part, index in wanted):
        return None
    call = match.rows.tuple_value
    is_one = all(part.tuple_value.same_as(call) for part, _ in wanted)
    return call if is_one and op_name(call) == "vision.get_valid_counts" else None


def _why_no_rows(match: Match, rows: relay.Expr) -> Refusal | None:
    if rows.checked_type.dtype != "float32":
        return Refusal(f"class ids of {rows.checked_type.dtype} are not compared exactly")
    if _is_class_aware(match) and static_shape(rows) is None:
        # TVM's `reinterpret` has no shape function.
        return Refusal("there are class ids, and the number of boxes is known only at run time")
    if not match.root.attrs.return_indices and known_extent(rows.checked_type.shape[0]) is None:
        return Refusal("the batch size is known only at run time")  # not for `take`
    return None


def _why_no_limits(match: Match, valid: relay.Call) -> Refusal | None:
    """Why the thresholds and the number of boxes to keep do not allow the rewrite, or None."""
    score_threshold = scalar(_score_threshold(valid))
    if score_threshold is None or not score_threshold >= 0:
        return Refusal("boxes with a score of 0 or less may be valid, and TVM's NMS never suppresses those")
    if scalar(match.iou_threshold) is None:
        return Refusal("the IoU threshold is known only at run time")
    if scalar(match.most) is None:
        return Refusal("the number of boxes to keep is known only at run time")
    if scalar(match.most) >= 0 and known_extent(valid.args[0].checked_type.shape[1]) is None:
        return Refusal("the NMS keeps only some boxes, and their total number is known only at run time")
    return why_no_thresholds(match.iou_threshold, _score_threshold(valid))


def _score_threshold(valid: relay.Call) -> relay.Expr:
    """The score threshold of get_valid_counts, which is an attribute in older graphs."""
    attribute = valid.attrs.score_threshold
    return valid.args[1] if attribute is None else relay.const(float(attribute), "float32")


def _room(match: Match) -> tuple[int | None, int]:
    """The number of boxes to make room for, and how many fewer than all; (None, 0) without a limit."""
    most, count = int(scalar(match.most)), known_extent(match.rows.checked_type.shape[1])
    return (most, count - most) if count is not None and 0 <= most < count else (None, 0)


def _is_class_aware(match: Match) -> bool:
    return not match.root.attrs.force_suppress and int(match.root.attrs.id_index) >= 0


def _minus_one_like(tensor: relay.Expr) -> relay.Expr:
    # Not a scalar: the shape function of `where` takes it for a vector, and fails on zero boxes.
    return relay.full_like(tensor, relay.const(-1, "float32"))


def _column(rows: relay.Expr, index: int) -> relay.Expr:
    return relay.take(rows, relay.const(int(index), "int32"), axis=2)


def _bits(ids: relay.Expr) -> relay.Expr:
    return relay.reinterpret(relay.abs(ids), "int32")
