"""Pasting masks as one operator: what torchvision traces is a loop over the detections.

It is traced in place of torchvision's function, so a model that comes traced already has the loop.
"""

import contextlib
import sys
from unittest import mock

import torch

PASTE_MASKS = "topi_ext::paste_masks"  # masks, boxes, height, width

_library = torch.library.Library("topi_ext", "DEF")
_library.define("paste_masks(Tensor masks, Tensor boxes, int height, int width) -> Tensor")


@contextlib.contextmanager
def pasting_is_an_operator():
    """Inside, torchvision's detectors paste masks with the operator."""
    transform = sys.modules.get("torchvision.models.detection.transform")
    if transform is None:  # so no model is a detector
        yield
        return
    paste = transform.paste_masks_in_image

    def operator(masks, boxes, img_shape, padding=1):
        if padding != 1:
            return paste(masks, boxes, img_shape, padding)
        return torch.ops.topi_ext.paste_masks(masks, boxes, *map(int, img_shape))

    with mock.patch.object(transform, "paste_masks_in_image", operator):
        yield


def _paste_masks(masks, boxes, height, width):
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    tracing = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # or it would run the loop, and the tracer record it
    try:
        return paste_masks_in_image(masks, boxes, (height, width))
    finally:
        torch._C._set_tracing_state(tracing)


_library.impl("paste_masks", _paste_masks, "CompositeExplicitAutograd")
