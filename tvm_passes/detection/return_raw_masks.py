"""Return the small masks of detections instead of the images that they are pasted into."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.rule import LEGAL, Answer, Match, Refusal, Rule, RulePass
from .pasted_masks import why_not_only_an_output


class PastedMasks(Rule):
    """Replace an output `paste_masks(masks, boxes)` with `masks`, (N, 1, M, M), in their own type.

    Why legal: it changes only what the function returns, which is its purpose; nothing else uses the images.
    The caller still gets the masks and their boxes, all that is needed to paste them.
    """

    masks = wildcard()
    pattern = is_op("topi_ext.paste_masks")(masks, wildcard())

    def plan(self, match: Match) -> Answer | Refusal:
        reason = why_not_only_an_output(match)
        return Refusal(reason) if reason else LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.masks


class ReturnRawMasks(RulePass):
    """Make a Mask R-CNN return the mask of each detection as the network computes it: (N, 1, 28, 28).

    It changes the outputs, so it is in a pipeline only if asked for. Pasted images are most of what such a
    network writes: 100 of 800x1333 take 427 MB. Names and order of the outputs stay the same. Apply it before
    or after `MakeDetectionStatic`.

    >>> masks, boxes = relay.var("masks", shape=(9, 1, 28, 28)), relay.var("boxes", shape=(9, 4))
    >>> images = topi_ext.paste_masks(masks, boxes, (800, 1333))
    >>> mod = tvm.IRModule.from_expr(relay.Tuple([boxes, images]))
    >>> print(tvm_passes.as_text(tvm_passes.ReturnRawMasks()(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %masks: Tensor[(9, 1, 28, 28), float32])
        -> (Tensor[(9, 4), float32], Tensor[(9, 1, 28, 28), float32]) {
      (%boxes, %masks)
    }
    """

    rules = (PastedMasks,)
    keeps_types = False
