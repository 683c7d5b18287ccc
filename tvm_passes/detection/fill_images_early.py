"""Write the empty images of pasted masks while an NMS runs, which leaves most of a GPU idle."""

from __future__ import annotations

from topi_ext import full_after, paste_masks_over

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.static import is_static
from ..analysis.targets import is_for_gpu, target_or_current
from ..engine.expressions import known_shape, op_name
from ..engine.graph import Graph, children
from ..engine.rule import Answer, Match, Refusal, Rule, RulePass, for_target

NMS = "topi_ext.batched_nms"


class FillBesideNMS(Rule):
    """Replace `paste_masks(masks, boxes)` with `paste_masks_over(masks, boxes, full_after(scores))`.

    `scores` are those of the first NMS from which masks and boxes are computed, so images are filled while it
    runs.

    Why legal: the images that masks are pasted over have the value that all pixels outside of boxes get.
    """

    target: tvm.target.Target | None = None
    masks, boxes = wildcard(), wildcard()
    pattern = is_op("topi_ext.paste_masks")(masks, boxes)

    def where(self, match: Match) -> bool:
        return is_for_gpu(self.target)

    def plan(self, match: Match) -> relay.Expr | Answer | Refusal:
        """The scores of the NMS."""
        if not is_static(match.graph):
            return Refusal("the network is dynamic: TVM's virtual machine would copy the images")
        scores = _scores_of_first_nms(match.graph, match.root)
        return scores or Refusal("no NMS is computed before, beside which the images could be filled")

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        attrs = match.root.attrs
        threshold = float(attrs["threshold"]) if attrs["has_threshold"] else None
        dtype, value = ("float32", 0) if threshold is None else ("uint8", int(threshold <= 0))
        images = full_after(plan, known_shape(match.root), dtype, value)
        return paste_masks_over(match.masks, match.boxes, images, threshold=threshold)


def _scores_of_first_nms(graph: Graph, node: relay.Expr) -> relay.Expr | None:
    """The scores that the first NMS reads from which a node is computed."""
    below, waiting = {node}, [node]
    while waiting:
        new = [each for each in children(waiting.pop()) if each not in below]
        below.update(new)
        waiting += new
    first = next((each for each in graph.nodes if op_name(each) == NMS and each in below), None)
    return None if first is None else first.args[1]


class FillImagesEarly(RulePass):
    """Fill the images that masks are pasted into while an NMS runs, and paste over them.

    100 images of 800x1333 take 427 MB, and most of a Mask R-CNN's last step is to write zeros there. They
    wait for nothing, and the steps of an NMS leave memory and most of the GPU idle. `target`: the target to
    compile for, by default the current one. Only CUDA runs steps at the same time.

    >>> boxes, scores = relay.var("boxes", shape=(500, 4)), relay.var("scores", shape=(500,))
    >>> kept = relay.TupleGetItem(topi_ext.nms(boxes, scores, 0.5, max_output_size=9), 0)
    >>> masks = relay.var("masks", shape=(9, 1, 28, 28))
    >>> images = topi_ext.paste_masks(masks, relay.take(boxes, kept, axis=0), (800, 1333))
    >>> mod = tvm.IRModule.from_expr(images)
    >>> print(tvm_passes.as_text(tvm_passes.FillImagesEarly("cuda -arch=sm_90")(mod)))
    def @main(%masks: Tensor[(9, 1, 28, 28), float32], %boxes: Tensor[(500, 4), float32],
        %scores: Tensor[(500), float32]) -> Tensor[(9, 1, 800, 1333), float32] {
      %0 = zeros_like(%scores);
      %1 = cast(%0, dtype="int32");
      %2 = topi_ext.batched_nms(%boxes, %scores, %1, 0, 0.5f, 0f, has_score_threshold=0,
          has_valid_count=0, max_output_size=9);
      %3 = %2.0;
      %4 = take(%boxes, %3, axis=0);
      %5 = topi_ext.full_after(%scores, dtype="float32", shape=[9, 1, 800, 1333], value=0f);
      topi_ext.paste_masks_over(%masks, %4, %5, has_threshold=0, threshold=0f)
    }
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = (for_target(FillBesideNMS, target),)
        super().__init__()
