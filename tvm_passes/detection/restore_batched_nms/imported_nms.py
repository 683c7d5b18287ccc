"""Replace the NMS of TVM's importers, packed and shifted, with topi_ext.batched_nms of one class."""

from __future__ import annotations

from topi_ext.batched_nms import one_class

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, is_tuple, is_tuple_get_item, wildcard

from ...analysis.shape_values import Dim, all_equal, shape_values
from ...engine.expressions import either_way, extents_of, op_name, scalar, static_shape
from ...engine.graph import Graph
from ...engine.rule import Match, Refusal, Rule
from ..selection import in_order, select
from ..stock_nms import thresholds, why_no_boxes, why_no_thresholds


class NmsOfPyTorch(Rule):
    """Replace what TVM's importer makes of `torchvision.ops.nms`.

    Why legal: the importer packs scores and boxes into one tensor and shifts the scores above 0, because
    TVM's NMS drops all others; only the order of the scores matters, and the shift keeps it. TVM suppresses
    at an IoU equal to the threshold and sorts the corners of a box; torchvision suppresses only above the
    threshold and takes corners as they are. The rewrite follows torchvision, as the model does.
    """

    boxes, shifted = wildcard(), wildcard()
    packed = is_op("concatenate")(is_tuple([is_op("expand_dims")(shifted), boxes]))
    valid_count, order, most, iou_threshold = wildcard(), wildcard(), wildcard(), wildcard()
    nms = is_op("vision.non_max_suppression")(
        is_op("expand_dims")(packed), valid_count, is_op("expand_dims")(order), most, iou_threshold
    )
    begin, strides = wildcard(), wildcard()
    kept = is_op("dyn.strided_slice")(
        is_op("squeeze")(is_tuple_get_item(nms, 0)),
        begin,
        is_op("squeeze")(is_tuple_get_item(nms, 1)),
        strides,
    )
    pattern = is_op("cast")(kept)

    def plan(self, match: Match) -> relay.Expr | Refusal:
        """The scores before TVM's importer shifted them."""
        attrs, graph = match.nms.attrs, match.graph
        layout = (attrs.coord_start, attrs.score_index, attrs.id_index, attrs.top_k)
        if tuple(int(value) for value in layout) != (1, 0, -1, -1) or not attrs.return_indices:
            return Refusal("the NMS does not take rows of score and box, or takes only some of them")
        if match.root.attrs.dtype != "int64" or str(match.kept.attrs.slice_mode) != "size":
            return Refusal("the kept indices are not sliced as in TVM's import of torchvision.ops.nms")
        if not all_equal(graph, match.begin, 0) or not all_equal(graph, match.strides, 1):
            return Refusal("the slice does not take the leading indices in order")
        if scalar(match.most) != -1:
            return Refusal("the NMS keeps a limited number of boxes")
        if not _counts(graph, match.valid_count, match.shifted) or not _numbers_all(match.order):
            return Refusal("the NMS does not look at all boxes")
        refusal = why_no_boxes(match.boxes, match.shifted, rank=2)
        if refusal:
            return refusal
        threshold = match.iou_threshold.checked_type
        if len(threshold.shape) != 0 or threshold.dtype != "float32":
            return Refusal("the IoU threshold is not a float32 scalar")
        scores = _scores(match)
        if scores is None:
            return Refusal("the scores are not shifted above 0, and TVM's NMS drops scores of 0 or less")
        return scores

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return select(match.boxes, plan, one_class(plan), match.iou_threshold)


class NmsOfOnnx(Rule):
    """Replace an ONNX NonMaxSuppression of one image and one class.

    Why legal: the rows of its result are (image, class, box), in descending order of score; the only image
    and the only class are 0. TVM suppresses
    at an IoU equal to the threshold, topi_ext.batched_nms only above it, so it is given the next float down:
    what TVM computes is kept, and where `frontends.from_onnx` gave TVM the next float up, the model's own
    threshold is back. A limit of 0 or fewer boxes means no limit, as in TVM. A box may be given by any two
    opposite corners, which are sorted. TVM never suppresses a box with a score of 0 or less, and drops those
    of -1 or less; ONNX compares all scores, and so does the rewrite.
    """

    boxes, scores, most, iou_threshold, score_threshold = (wildcard() for _ in range(5))
    nms = is_op("vision.all_class_non_max_suppression")(boxes, scores, most, iou_threshold, score_threshold)
    begin, strides = wildcard(), wildcard()
    pattern = is_op("dyn.strided_slice")(is_tuple_get_item(nms, 0), begin, is_tuple_get_item(nms, 1), strides)

    def where(self, match: Match) -> bool:
        """Those of several images or classes are for LowerClassAwareNMS."""
        return extents_of(match.scores)[:2] == (1, 1)

    def plan(self, match: Match) -> int | Refusal:
        """The number of boxes to keep."""
        graph = match.graph
        if str(match.nms.attrs.output_format) != "onnx" or str(match.root.attrs.slice_mode) != "end":
            return Refusal("the result is not sliced as in TVM's import of ONNX's NonMaxSuppression")
        if not all_equal(graph, match.begin, 0) or not all_equal(graph, match.strides, 1):
            return Refusal("the slice does not take the leading rows in order")
        most = scalar(match.most)
        if most is None:
            return Refusal("the number of boxes to keep is known only at run time")
        refusal = why_no_boxes(match.boxes, match.scores, rank=3)
        return refusal or why_no_thresholds(match.iou_threshold, match.score_threshold) or int(most)

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        boxes, scores = _without_axes(match.boxes, 1), _without_axes(match.scores, 2)
        iou_threshold, score_threshold = thresholds(match.iou_threshold, match.score_threshold)
        kept = select(
            in_order(boxes),
            scores,
            one_class(scores),
            iou_threshold,
            score_threshold=score_threshold,
            max_output_size=plan if 0 < plan < 2**31 - 1 else None,
        )
        zeros = relay.zeros_like(kept)
        return relay.stack([zeros, zeros, kept], axis=1)


class ColumnOfStack(Rule):
    """Replace a column that is taken from stacked ones by that column, of which the others may be unused.

    Why legal: they are stacked along the axis that the index is of.
    """

    column = wildcard()
    stacked = is_op("stack")(wildcard())
    taken = is_op("take")(stacked, column)
    pattern = is_op("squeeze")(taken) | taken

    def where(self, match: Match) -> bool:
        axes = int(match.taken.attrs.axis or 0), int(match.stacked.attrs.axis)
        are_columns = isinstance(match.stacked.args[0], relay.Tuple) and axes == (1, 1)
        return are_columns and len(match.root.checked_type.shape) == 1

    def plan(self, match: Match) -> relay.Expr | Refusal:
        """The column."""
        columns = match.stacked.args[0].fields
        found = [column for at, column in enumerate(columns) if all_equal(match.graph, match.column, at)]
        return found[0] if found else Refusal("the column that is taken is known only at run time")

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


def _scores(match: Match) -> relay.Expr | None:
    """The scores before TVM's importer shifted them above 0, `scores - min(scores) + 1`, or None."""
    moved = match.shifted
    above = [term for term, more in either_way(moved) if scalar(more) == 1] if op_name(moved) == "add" else []
    if not above or op_name(above[0]) != "subtract":
        return None
    scores, least = above[0].args
    smallest = op_name(least) == "min" and least.args[0].same_as(scores) and static_shape(least) == ()
    return scores if smallest else None


def _counts(graph: Graph, count: relay.Expr, tensor: relay.Expr) -> bool:
    """Whether a tensor of one element holds the length of another."""
    values = shape_values(graph, count)
    if values is None or values.size != 1:
        return False
    (length,) = tensor.checked_type.shape
    return values.flat[0] == (int(length) if hasattr(length, "value") else Dim(tensor, 0))


def _numbers_all(order: relay.Expr) -> bool:
    return op_name(order) == "arange" and scalar(order.args[0]) == 0 and scalar(order.args[2]) == 1


def _without_axes(expr: relay.Expr, count: int) -> relay.Expr:
    """The tensor without that many leading axes of length 1: the operand of `expand_dims`, if it has one."""
    while count and op_name(expr) == "expand_dims" and int(expr.attrs.axis) == 0:
        added = min(count, int(expr.attrs.num_newaxis))
        if added != int(expr.attrs.num_newaxis):
            break
        expr, count = expr.args[0], count - added
    return relay.squeeze(expr, axis=list(range(count))) if count else expr
