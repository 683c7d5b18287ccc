"""Return the masks of detections as COCO's run lengths instead of the images that they are pasted into."""

from __future__ import annotations

import topi_ext  # before tvm
from topi_ext.encode_masks.op import check_form

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.rule import LEGAL, Answer, Match, Refusal, Rule, RulePass
from .pasted_masks import why_not_only_an_output


class MasksToEncode(Rule):
    """Replace an output `paste_masks(masks, boxes)` with `encode_masks(masks, boxes)`.

    Why legal: it changes only what the function returns, which is its purpose; nothing else uses the images.
    Images of a threshold are encoded with that threshold, so no pixel changes.
    """

    pattern = is_op("topi_ext.paste_masks")(wildcard(), wildcard())
    threshold: float  # these are set by the pass
    form: str
    capacity: int | None

    def plan(self, match: Match) -> Answer | Refusal:
        reason = why_not_only_an_output(match)
        return Refusal(reason) if reason else LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        (masks, boxes), attrs = match.root.args, match.root.attrs
        threshold = float(attrs["threshold"]) if attrs["has_threshold"] else self.threshold
        return topi_ext.encode_masks(
            masks,
            boxes,
            attrs["image_size"],
            threshold=threshold,
            form=self.form,
            capacity=self.capacity,
        )


class ReturnEncodedMasks(RulePass):
    """Make a Mask R-CNN return each mask as the bytes that COCO's tools take: some kilobytes for an image.

    Pasted images are most of what such a network writes: 100 of 800x1333 take 427 MB, too much to copy to the
    host or to keep. A pixel belongs to a mask if it is at least `threshold`, unless the network has a
    threshold of its own; `form` and `capacity` are those of `topi_ext.encode_masks`. Of the run lengths,
    `tvm_passes.runtime.coco_masks` makes COCO's dicts.

    It changes the outputs, so it is in a pipeline only if asked for. Their names and order stay the same.
    Apply it before or after `MakeDetectionStatic`: the rows that this pads have the code of an empty image.

    >>> masks, boxes = relay.var("masks", shape=(9, 1, 28, 28)), relay.var("boxes", shape=(9, 4))
    >>> images = topi_ext.paste_masks(masks, boxes, (800, 1333))
    >>> mod = tvm.IRModule.from_expr(relay.Tuple([boxes, images]))
    >>> print(tvm_passes.as_text(tvm_passes.ReturnEncodedMasks()(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %masks: Tensor[(9, 1, 28, 28), float32])
        -> (Tensor[(9, 4), float32], Tensor[(9, 32056), uint8]) {
      %0 = topi_ext.encode_masks(%masks, %boxes, encoded_shape=[32056], form="rle",
          image_size=[800, 1333], threshold=0.5f);
      (%boxes, %0)
    }
    """

    keeps_types = False

    def __init__(self, threshold: float = 0.5, *, form: str = "rle", capacity: int | None = None) -> None:
        check_form("ReturnEncodedMasks", form, capacity)
        options = {"threshold": threshold, "form": form, "capacity": capacity}
        self.rules = (type("MasksToEncode", (MasksToEncode,), options),)
        super().__init__()
