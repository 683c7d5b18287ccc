"""Restore class-aware NMS where a graph has one-class NMS on boxes that are shifted apart by class."""

from ...engine.rule import RulePass
from .empty_case import NmsOfNothing
from .imported_nms import ColumnOfStack, NmsOfOnnx, NmsOfPyTorch
from .offset_trick import OffsetByClass
from .same_branches import SameNmsOnBothBranches
from .shifted_coordinates import ShiftedCoordinates


class RestoreBatchedNMS(RulePass):
    """Replace imported NMS with `topi_ext.batched_nms`, and boxes shifted apart by class with class ids.

    >>> import frontends, torch, torchvision
    >>> class Detect(torch.nn.Module):
    ...     def forward(self, boxes, scores, ids):
    ...         return torchvision.ops.batched_nms(boxes, scores, ids, 0.5)
    >>> detections = torch.rand(9, 4), torch.rand(9), torch.arange(9)
    >>> mod, _ = frontends.from_pytorch(Detect(), detections)
    >>> print(tvm_passes.as_text(tvm_passes.RestoreBatchedNMS()(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %scores: Tensor[(9), float32],
        %ids: Tensor[(9), int64], input_names=["boxes", "scores", "ids"], output_names=["output"])
        -> Tensor[(?), int64] {
      %0 = topi_ext.batched_nms(%boxes, %scores, %ids, 0, 0.5f, 0f, has_score_threshold=0,
          has_valid_count=0, max_output_size=-1);
      %1 = %0.1;
      %2 = %0.0;
      %3 = expand_dims(%1, axis=0);
      dyn.strided_slice(%2, const([0]), %3, const([1]), slice_mode="size")
    }
    """

    rules = (
        NmsOfPyTorch,
        NmsOfOnnx,
        ColumnOfStack,
        ShiftedCoordinates,
        OffsetByClass,
        NmsOfNothing,
        SameNmsOnBothBranches,
    )
