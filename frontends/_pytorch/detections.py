"""What detectors do with each detection, as operators: torchvision traces a loop over the detections.

They are traced in place of torchvision's functions; a model that is already traced has the loops.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any
from unittest import mock

import torch

PASTE_MASKS = "frontends::paste_masks"  # masks, boxes, height, width
HEATMAPS_TO_KEYPOINTS = "frontends::heatmaps_to_keypoints"  # maps, rois
DETECTION = "torchvision.models.detection"


class _Here(threading.local):
    """What this thread does; another one may run a traced model meanwhile."""

    is_tracing = False


_here = _Here()
_library = torch.library.Library("frontends", "DEF")
_library.define("paste_masks(Tensor masks, Tensor boxes, int height, int width) -> Tensor")
_library.define("heatmaps_to_keypoints(Tensor maps, Tensor rois) -> (Tensor, Tensor)")


@contextlib.contextmanager
def detections_are_handled_by_operators() -> Iterator[None]:
    """Inside, torchvision's detectors paste masks and find keypoints with the operators.

    These compute nothing, since a trace needs only the shapes of results: pasting takes seconds.
    """
    with contextlib.ExitStack() as stack:
        for place, name, by_operator in REPLACED:
            module = sys.modules.get(f"{DETECTION}.{place}")
            if module is not None:  # else no model is a detector
                function = wraps(getattr(module, name))(by_operator)
                stack.enter_context(mock.patch.object(module, name, function))
        coder = getattr(sys.modules.get(f"{DETECTION}._utils"), "BoxCoder", None)
        if coder is not None:
            decode = _with_axis_of_classes(coder.decode)
            stack.enter_context(mock.patch.object(coder, "decode", decode))
        stack.enter_context(mock.patch.object(_here, "is_tracing", True))
        yield


def _paste_masks_in_image(
    masks: torch.Tensor, boxes: torch.Tensor, img_shape: Sequence[int], padding: int = 1
) -> torch.Tensor:
    if padding != 1:
        return _torchvisions("paste_masks_in_image")(masks, boxes, img_shape, padding)
    return torch.ops.frontends.paste_masks(masks, boxes, *map(int, img_shape))


def _heatmaps_to_keypoints(maps: torch.Tensor, rois: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.frontends.heatmaps_to_keypoints(maps, rois)


REPLACED: list[tuple[str, str, Callable]] = [  # in the modules where they are called
    ("transform", "paste_masks_in_image", _paste_masks_in_image),
    ("roi_heads", "heatmaps_to_keypoints", _heatmaps_to_keypoints),
]


def _with_axis_of_classes(decode: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torchvision adds no axis where there are no regions, and a trace would keep that for other images."""

    @wraps(decode)
    def decode_any(self: Any, rel_codes: torch.Tensor, boxes: Sequence[torch.Tensor]) -> torch.Tensor:
        decoded = decode(self, rel_codes, boxes)
        if decoded.dim() == 3:
            return decoded
        return decoded.reshape(decoded.shape[0], int(decoded.shape[1]) // 4, 4)

    return decode_any


def _torchvisions(name: str) -> Callable:
    """A function of torchvision, even while another one is in its place."""
    from torchvision.models.detection import roi_heads

    return inspect.unwrap(getattr(roi_heads, name))


def _eagerly(name: str, *args: Any) -> Any:
    """Call torchvision's function without tracing; otherwise the tracer would record its loop."""
    tracer: Any = torch._C
    tracing = tracer._get_tracing_state()
    tracer._set_tracing_state(None)
    try:
        return _torchvisions(name)(*args)
    finally:
        tracer._set_tracing_state(tracing)


def _implement(name: str, compute: Callable[..., Any], in_a_trace: Callable[..., Any]) -> None:
    def either(*args: Any) -> Any:
        return (in_a_trace if _here.is_tracing else compute)(*args)

    _library.impl(name, either, "CompositeExplicitAutograd")


def _masks_that_cover_the_image(masks: torch.Tensor, _boxes: torch.Tensor, *size: int) -> torch.Tensor:
    return torch.ones_like(masks[..., :1, :1]).expand(-1, -1, *size)


def _keypoints_in_the_corner(maps: torch.Tensor, rois: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.ones_like(maps[:, :, 0, 0])
    return torch.cat([rois[:, None, :2].repeat(1, maps.shape[1], 1), scores[..., None]], 2), scores


_implement(
    "paste_masks",
    lambda masks, boxes, *size: _eagerly("paste_masks_in_image", masks, boxes, size),
    _masks_that_cover_the_image,
)
_implement(
    "heatmaps_to_keypoints",
    lambda maps, rois: _eagerly("heatmaps_to_keypoints", maps, rois),
    _keypoints_in_the_corner,
)
