"""A call of each function of `topi_ext.torch`, small, for what all of them have in common."""

from dataclasses import dataclass

import numpy as np
import torch

import topi_ext.torch as ops
from tests.helpers import numbers
from tests.ops.detections import clustered_detections
from tests.ops.objects import heatmaps, objects
from tests.ops.regions import pyramid, regions
from tests.ops.warps import random_images, rotations


@dataclass(frozen=True)
class TorchCall:
    """`function(*arguments, **options)` of tensors on the CPU, and numbers."""

    function: object
    arguments: tuple
    options: dict

    def map(self, change):
        """The same with each tensor changed."""
        options = {name: _map(change, option) for name, option in self.options.items()}
        return TorchCall(self.function, _map(change, self.arguments), options)

    def __call__(self):
        return self.function(*self.arguments, **self.options)

    @property
    def name(self):
        return self.function.__name__


def torch_calls():
    """{name: call}: one of each function, and more where it takes other types."""
    rois, (feature, *_) = regions(9), pyramid(32, 40)
    images, detections = random_images(2, (12, 15)), clustered_detections(60, 5)
    objects_, attention = objects(5, (30, 40), side=8), _attention()
    pool = {"pooled_size": 2, "spatial_scale": 0.25}
    many = {"pooled_size": (2, 3), "scales": [0.25, 0.125], "sampling_ratio": 2}
    return {
        "warp_affine": _call(ops.warp_affine, images, rotations(2, (12, 15)), (9, 11)),
        "warp_affine, a color": _call(
            ops.warp_affine, images, rotations(1, (12, 15))[0], (9, 11), border_value=[1, 2, 3]
        ),
        "nms": _call(ops.nms, *detections[:2], 0.5),
        "batched_nms": _call(ops.batched_nms, *detections, 0.5, score_threshold=0.2, max_output_size=20),
        "batched_nms, tensors": _call(ops.batched_nms, *detections, np.float32(0.5)),
        "batched_nms, a number and a tensor": _call(
            ops.batched_nms, *detections, 0.5, score_threshold=torch.tensor(0.2)
        ),
        "batched_nms, a tensor and a number": _call(
            ops.batched_nms, *detections, np.float32(0.5), score_threshold=0.2
        ),
        "roi_align": _call(ops.roi_align, feature, rois, sampling_ratio=2, **pool),
        "multiscale_roi_align": TorchCall(
            ops.multiscale_roi_align, (_tensors(*pyramid(32, 40, levels=2)), *_tensors(rois)), many
        ),
        "roi_pool": _call(ops.roi_pool, feature, rois, **pool),
        "ps_roi_pool": _call(ops.ps_roi_pool, feature, rois, **pool),
        "deformable_attention": _call(ops.deformable_attention, *attention, levels=[(6, 5, 2), (3, 3, 1)]),
        "paste_masks": _call(ops.paste_masks, *objects_, (30, 40), threshold=0.5),
        "encode_masks": _call(ops.encode_masks, *objects_, (30, 40), threshold=0.4),
        "encode_masks, bits": _call(ops.encode_masks, *objects_, (30, 40), form="bits"),
        "heatmaps_to_keypoints": _call(ops.heatmaps_to_keypoints, *heatmaps(4, 3, (7, 7))),
        "group_norm": _call(
            ops.group_norm,
            numbers(2, 12, 3, 5),
            numbers(12),
            numbers(12, seed=1),
            groups=3,
            activation="silu",
        ),
        "layer_norm": _call(ops.layer_norm, numbers(4, 5, 12), numbers(12), numbers(12, seed=1)),
        "layer_norm, an axis": _call(ops.layer_norm, numbers(4, 12, 5), axis=1, epsilon=1e-3),
        "preprocess": _call(
            ops.preprocess,
            random_images(2, (12, 15), layout="NHWC"),
            (10, 9),
            (12, 12),
            mean=[100, 110, 120],
            std=[50, 60, 70],
        ),
    }


def _call(function, *arguments, **options):
    return TorchCall(function, _tensors(*arguments), options)


def _tensors(*arguments):
    """Arrays as tensors in torch's own memory, whose addresses kernels take as they are."""
    is_array = (np.ndarray, np.generic)
    return tuple(torch.tensor(each) if isinstance(each, is_array) else each for each in arguments)


def _map(change, arguments):
    if isinstance(arguments, torch.Tensor):
        return change(arguments)
    return tuple(_map(change, each) for each in arguments) if isinstance(arguments, tuple) else arguments


def _attention():
    shapes = (2, 39, 8), (2, 9, 3, 2), (2, 9, 3)
    random = np.random.default_rng(0)
    return [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
