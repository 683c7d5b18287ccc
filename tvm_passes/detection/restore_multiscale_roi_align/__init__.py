"""Restore the RoIAlign of a feature pyramid where a graph has one RoIAlign per level."""

from ...engine.rule import RulePass
from .one_by_level import OneByLevel


class RestoreMultiScaleRoIAlign(RulePass):
    """Replace one RoIAlign per level, each on the regions of that level, with one that picks the levels.

    >>> import frontends, torch, torchvision
    >>> class Pool(torch.nn.Module):
    ...     def forward(self, fine, coarse, boxes):
    ...         pool = torchvision.ops.MultiScaleRoIAlign(["fine", "coarse"], 7, sampling_ratio=2)
    ...         return pool({"fine": fine, "coarse": coarse}, [64 * boxes], [(64, 64)])
    >>> inputs = torch.rand(1, 8, 16, 16), torch.rand(1, 8, 8, 8), torch.rand(9, 4)
    >>> mod, _ = frontends.from_pytorch(Pool(), inputs)
    >>> print(tvm_passes.as_text(tvm_passes.RestoreMultiScaleRoIAlign()(mod)))
    def @main(%fine: Tensor[(1, 8, 16, 16), float32], %coarse: Tensor[(1, 8, 8, 8), float32],
        %boxes: Tensor[(9, 4), float32], input_names=["fine", "coarse", "boxes"],
        output_names=["output"]) -> Tensor[(9, 8, 7, 7), float32] {
      %0 = full(0f, shape=[9, 1], dtype="float32");
      %1 = multiply(%boxes, 64f);
      %2 = (%0, %1);
      %3 = concatenate(%2, axis=1);
      %4 = (%fine, %coarse, %3);
      topi_ext.multiscale_roi_align(%4, aligned=0, by_area=1, by_position=0, canonical_level=4,
          canonical_size=224f, eps=1e-06f, eps_in_log2=0, feature_scales=[1f, 1f], layout="NCHW",
          min_level=2, out_dtype="", out_scale=1f, pooled_size=[7, 7], sampling_ratio=2,
          scales=[0.25f, 0.125f])
    }
    """

    rules = (OneByLevel,)
