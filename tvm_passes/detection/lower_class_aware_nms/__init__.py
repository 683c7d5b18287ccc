"""Lower TVM's own class-aware NMS to the operator that has fast kernels."""

from ...engine.rule import RulePass
from .all_class_nms import AllClassNms
from .nms_of_rows import NmsOfRows


class LowerClassAwareNMS(RulePass):
    """Replace NMS of TVM that is already class-aware with `topi_ext.batched_nms`.

    TVM suppresses at `iou >= threshold`, the operator at `iou > threshold`. It is given the next float32
    down, since `iou > nextafter(threshold, -inf)` holds for the same floats as `iou >= threshold`: the graph
    keeps the same boxes, also where an IoU equals the threshold. What a model means by its threshold is for
    the importer to say: `frontends.from_onnx` gives TVM's operator the next float up, and the two cancel.

    >>> rows = relay.var("rows", shape=(1, 9, 6))  # of class, score and corners
    >>> count, valid, indices = relay.vision.get_valid_counts(rows, 0.05, id_index=0, score_index=1)
    >>> options = {"id_index": 0, "score_index": 1, "coord_start": 2}
    >>> kept = relay.vision.non_max_suppression(valid, count, indices, -1, 0.5, **options)
    >>> mod = tvm.IRModule.from_expr(kept.astuple())
    >>> print(tvm_passes.as_text(tvm_passes.LowerClassAwareNMS()(mod)))
    def @main(%rows: Tensor[(1, 9, 6), float32]) -> (Tensor[(1, 9), int32], Tensor[(1, 1), int32]) {
      %0 = strided_slice(%rows, begin=[2], end=[6], strides=[1], axes=[2]);
      %1 = strided_slice(%0, begin=[0], end=[2], strides=[1], axes=[2]);
      %2 = strided_slice(%0, begin=[2], end=[4], strides=[1], axes=[2]);
      %3 = minimum(%1, %2);
      %4 = maximum(%1, %2);
      %5 = (%3, %4);
      %6 = take(%rows, 0, axis=2);
      %7 = take(%rows, 1, axis=2);
      %8 = greater_equal(%6, 0f);
      %9 = full_like(%7, -1f);
      %10 = take(%rows, 0, axis=2);
      %11 = abs(%10);
      %12 = concatenate(%5, axis=2);
      %13 = where(%8, %7, %9);
      %14 = reinterpret(%11, dtype="int32");
      %15 = topi_ext.batched_nms(%12, %13, %14, 0, 0.5f, 0.05f, has_score_threshold=1,
          has_valid_count=0, max_output_size=-1);
      %16 = %15.0;
      %17 = %15.1;
      %18 = cast(%16, dtype="int32");
      %19 = expand_dims(%17, axis=1);
      (%18, %19)
    }
    """

    rules = (AllClassNms, NmsOfRows)
