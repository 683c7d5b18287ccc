"""Samples of torchvision's operators: (name, function, tensors)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from torchvision import ops
from torchvision.transforms.v2 import functional as transforms

IMAGE = (2, 3, 11, 14)


def samples(dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """The name of each operator, a function of tensors alone, and the tensors."""
    torch.manual_seed(0)
    yield from _of_boxes(dtype)
    yield from _of_regions(dtype)
    yield from _of_layers(dtype)
    yield from _of_images(dtype)


def _boxes(count: int, dtype: torch.dtype) -> torch.Tensor:
    corners = torch.rand(count, 2) * 20
    return torch.cat([corners, corners + torch.rand(count, 2) * 12 + 0.5], dim=1).to(dtype)


def _of_boxes(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    boxes, others = _boxes(12, dtype), _boxes(7, dtype)
    scores = torch.rand(12).to(dtype)
    classes = torch.arange(12) % 3
    yield "nms", lambda b, s: ops.nms(b, s, 0.3), [boxes, scores]
    yield "batched_nms", lambda b, s, c: ops.batched_nms(b, s, c, 0.3), [boxes, scores, classes]
    for name in ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        yield name, getattr(ops, name), [boxes, others]
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        yield name, getattr(ops, name), [boxes[:7], others]
    yield "box_area", ops.box_area, [boxes]
    yield "clip_boxes_to_image", lambda b: ops.clip_boxes_to_image(b, (18, 15)), [boxes]
    yield "remove_small_boxes", lambda b: ops.remove_small_boxes(b, 5.0), [boxes]
    for source, target in (("xyxy", "xywh"), ("xyxy", "cxcywh"), ("cxcywh", "xyxy"), ("xywh", "cxcywh")):
        yield (
            f"box_convert {source} {target}",
            lambda b, source=source, target=target: ops.box_convert(b, source, target),
            [boxes],
        )
    masks = torch.zeros(2, 8, 9, dtype=torch.bool)
    masks[0, 2:5, 3:7] = masks[1, 1:8, 0:4] = True
    yield "masks_to_boxes", ops.masks_to_boxes, [masks]


def _of_regions(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    features = torch.randn(2, 8, 13, 17).to(dtype)
    corners = [[0, 1, 2, 9, 11], [1, 0, 0, 16, 12], [1, -4, -3, 5, 5], [0, 3.2, 3.3, 3.9, 4.1]]
    regions = torch.tensor(corners).to(dtype)
    for aligned in (False, True):
        for ratio in (2, -1):
            yield (
                f"roi_align aligned={aligned} sampling_ratio={ratio}",
                lambda x, r, aligned=aligned, ratio=ratio: ops.roi_align(x, r, (2, 3), 0.7, ratio, aligned),
                [features, regions],
            )
    yield "roi_pool", lambda x, r: ops.roi_pool(x, r, (2, 3), 0.7), [features, regions]
    yield "ps_roi_align", lambda x, r: ops.ps_roi_align(x, r, 2, 0.7, 2), [features, regions]
    yield "ps_roi_pool", lambda x, r: ops.ps_roi_pool(x, r, 2, 0.7), [features, regions]
    for groups, offset_groups, stride, padding, dilation in ((1, 1, 1, 1, 1), (2, 2, 2, 1, 2)):
        weight = torch.randn(6, 8 // groups, 3, 3).to(dtype)
        out = [(size + 2 * padding - 2 * dilation - 1) // stride + 1 for size in (13, 17)]
        offset = (torch.randn(2, 18 * offset_groups, *out) * 3).to(dtype)
        mask = torch.rand(2, 9 * offset_groups, *out).to(dtype)
        bias = torch.randn(6).to(dtype)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        yield (
            f"deform_conv2d groups={groups} masked",
            lambda x, o, w, b, m, options=options: ops.deform_conv2d(x, o, w, b, mask=m, **options),
            [features, offset, weight, bias, mask],
        )
        yield (
            f"deform_conv2d groups={groups}",
            lambda x, o, w, options=options: ops.deform_conv2d(x, o, w, **options),
            [features, offset, weight],
        )


def _of_layers(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    image = torch.randn(IMAGE).to(dtype)
    targets = (torch.rand(IMAGE) > 0.5).to(dtype)
    for reduction in ("none", "mean", "sum"):
        yield (
            f"sigmoid_focal_loss {reduction}",
            lambda x, t, reduction=reduction: ops.sigmoid_focal_loss(x, t, reduction=reduction),
            [image, targets],
        )
    yield "stochastic_depth", lambda x: ops.stochastic_depth(x, 0.5, "row", training=False), [image]
    yield "drop_block2d", lambda x: ops.drop_block2d(x, 0.5, 3, training=False), [image]
    norm = ops.FrozenBatchNorm2d(3)
    norm.load_state_dict(
        {name: torch.rand(3) + 0.5 for name in ("weight", "bias", "running_mean", "running_var")}
    )
    yield "FrozenBatchNorm2d", norm.to(dtype), [image]
    layers = {
        "SqueezeExcitation": ops.SqueezeExcitation(3, 2),
        "Conv2dNormActivation": ops.Conv2dNormActivation(3, 4),
        "Permute": ops.Permute([0, 2, 3, 1]),
        "MLP": ops.MLP(14, [5, 4]),
        "LayerNorm2d": torchvision.models.convnext.LayerNorm2d(3),
    }
    for name, layer in layers.items():
        yield name, layer.eval().to(dtype), [image]


def _of_images(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    image = torch.rand(IMAGE).to(dtype)
    corners = [[0, 0], [13, 0], [13, 10], [0, 10]], [[1, 1], [12, 0], [13, 9], [0, 10]]
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "resize": lambda x: transforms.resize(x, [7, 9]),
        "resize antialias=False": lambda x: transforms.resize(x, [20, 9], antialias=False),
        "resize nearest": lambda x: transforms.resize(x, [7, 9], transforms.InterpolationMode.NEAREST),
        "normalize": lambda x: transforms.normalize(x, [0.4, 0.5, 0.6], [0.2, 0.3, 0.1]),
        "pad": lambda x: transforms.pad(x, [1, 2, 3, 0]),
        "pad reflect": lambda x: transforms.pad(x, [1, 2, 3, 0], padding_mode="reflect"),
        "crop": lambda x: transforms.crop(x, 2, 3, 6, 5),
        "center_crop": lambda x: transforms.center_crop(x, [6, 5]),
        "five_crop": lambda x: transforms.five_crop(x, [6, 5]),
        "resized_crop": lambda x: transforms.resized_crop(x, 2, 3, 6, 5, [9, 8]),
        "horizontal_flip": transforms.horizontal_flip,
        "vertical_flip": transforms.vertical_flip,
        "gaussian_blur": lambda x: transforms.gaussian_blur(x, [3, 5], [1.0, 2.0]),
        "affine": lambda x: transforms.affine(x, 20.0, [1, 2], 1.2, [5.0, 0.0]),
        "rotate": lambda x: transforms.rotate(x, 30.0),
        "rotate bilinear": lambda x: transforms.rotate(x, 30.0, transforms.InterpolationMode.BILINEAR),
        "perspective": lambda x: transforms.perspective(x, *corners),
        "rgb_to_grayscale": transforms.rgb_to_grayscale,
        "adjust_brightness": lambda x: transforms.adjust_brightness(x, 1.3),
        "adjust_contrast": lambda x: transforms.adjust_contrast(x, 1.3),
        "adjust_saturation": lambda x: transforms.adjust_saturation(x, 1.3),
        "adjust_gamma": lambda x: transforms.adjust_gamma(x, 1.3),
        "invert": transforms.invert,
        "solarize": lambda x: transforms.solarize(x, 0.5),
        "erase": lambda x: transforms.erase(x, 2, 3, 4, 5, torch.zeros(1, dtype=x.dtype)),
    }
    for name, function in functions.items():
        yield name, function, [image]
