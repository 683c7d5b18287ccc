"""Bring TVM's own class-aware NMS to the operator that has fast kernels."""

from .._rule import RulePass
from .all_class_nms import AllClassNms
from .nms_of_rows import NmsOfRows


class LowerClassAwareNMS(RulePass):
    """Replace TVM's NMS that is class-aware already with `topi_ext.batched_nms`.

    TVM suppresses at `iou >= threshold`, the operator at `iou > threshold`. It is given the next float32
    down, and `iou > nextafter(threshold, -inf)` holds for the same floats as `iou >= threshold`: the graph
    still keeps the same boxes, where an IoU is the threshold too. What a model meant by its threshold is for
    its importer to say: `frontends.from_onnx` gives TVM's operator the next float up, and the two cancel.
    """

    rules = (AllClassNms, NmsOfRows)
