"""Let the NMS itself leave out the boxes that a filter in front of it takes away."""

from .._rule import RulePass
from .nms_of_filtered import NmsOfFiltered


class FoldPreNMSFilter(RulePass):
    """Replace an NMS of the rows that a mask leaves with an NMS of all rows that has a score threshold.

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
