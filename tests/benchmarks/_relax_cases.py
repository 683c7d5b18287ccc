"""What `bench_relax` times on a GPU: operators that both TVMs have, and what computes the same elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torchvision
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops.boxes import _batched_nms_vanilla

import topi_ext
from tests.ops.detections import clustered_detections
from tests.ops.objects import objects
from tests.ops.regions import regions

NETWORK = "Mask R-CNN R50"  # one of `_models.ON_GPU`
IMAGE = 800, 1333
POOLED, SCALE, SAMPLES = 7, 0.25, 2
CONVOLUTION = {"padding": 1, "activation": "relu"}


@dataclass
class Case:
    """An operator on arrays: by `topi_ext` in either TVM, by torch, and by Relax itself."""

    arrays: Callable
    ours: Callable  # of expressions
    peer: Callable  # of tensors
    stock: Callable | None = None  # of expressions of Relax, which get the same arrays
    tolerance: float = 0  # to which ours is what the peer finds in float32
    by_class: Callable | None = None  # the peer where its fastest one rounds

    @property
    def exact(self):
        return self.by_class or self.peer


def nms(boxes, classes):
    def stock(boxes, scores, _class_ids):
        from tvm import relax

        scores = relax.op.expand_dims(scores, [0, 1])
        limits = [relax.const(each, dtype) for each, dtype in ((2**31 - 1, "int64"), (0.5, "float32"))]
        boxes = relax.op.expand_dims(boxes, 0)
        return relax.op.vision.all_class_non_max_suppression(
            boxes, scores, *limits, relax.const(0, "float32")
        )

    return Case(
        lambda: clustered_detections(boxes, classes),
        lambda *given: topi_ext.batched_nms(*given, 0.5),
        lambda *given: torchvision.ops.batched_nms(*given, 0.5),
        stock if classes == 1 else None,
        by_class=lambda *given: _batched_nms_vanilla(*given, 0.5),
    )


def roi_align(dtype, layout):
    """A thousand regions of one map."""

    def arrays():
        shape = (1, 256, 200, 336) if layout == "NCHW" else (1, 200, 336, 256)
        rois = regions(1000, 1, *IMAGE)
        return np.random.default_rng(0).standard_normal(shape, "float32").astype(dtype), rois

    def peer(data, rois):
        data = data if layout == "NCHW" else data.permute(0, 3, 1, 2)
        return torchvision.ops.roi_align(data, rois.to(data.dtype), POOLED, SCALE, SAMPLES)

    def stock(data, rois):
        from tvm import relax

        return relax.op.vision.roi_align(
            data, rois, (POOLED, POOLED), SCALE, SAMPLES, layout=layout, mode="avg"
        )

    options = {"spatial_scale": SCALE, "sampling_ratio": SAMPLES, "layout": layout}
    return Case(
        arrays,
        lambda *given: topi_ext.roi_align(*given, pooled_size=POOLED, **options),
        peer,
        stock if dtype == "float32" else None,
        1e-3 if dtype == "float32" else 5e-3,
    )


def paste_masks():
    return Case(
        lambda: objects(100, IMAGE),
        lambda *given: topi_ext.paste_masks(*given, IMAGE),
        lambda *given: paste_masks_in_image(*given, IMAGE),
        tolerance=1e-4,
    )


def convolution(height, width, channels, filters):
    """3x3, float16, with bias and ReLU."""

    def arrays():
        rng = np.random.default_rng(0)
        data = rng.standard_normal((1, height, width, channels), "float32").astype("float16")
        weight = rng.standard_normal((filters, 3, 3, channels), "float32") / (9 * channels) ** 0.5
        return data, weight.astype("float16"), rng.standard_normal(filters, "float32").astype("float16")

    def peer(data, weight, bias):
        data, weight = (each.permute(0, 3, 1, 2) for each in (data, weight))
        return torch.relu_(torch.nn.functional.conv2d(data, weight, bias, padding=1))

    def stock(data, weight, bias):
        from tvm import relax

        sums = relax.op.nn.conv2d(data, weight, padding=1, data_layout="NHWC", kernel_layout="OHWI")
        return relax.op.nn.relu(relax.op.add(sums, bias))

    return Case(arrays, lambda *given: topi_ext.conv2d_nhwc(*given, **CONVOLUTION), peer, stock, 2e-2)


CASES = {
    "NMS, 20,000 boxes of 80 classes": nms(20_000, 80),
    "NMS, 1,000 boxes of one class": nms(1_000, 1),
    "RoIAlign, 1,000 regions, float32 NCHW": roi_align("float32", "NCHW"),
    "RoIAlign, 1,000 regions, float16 NHWC": roi_align("float16", "NHWC"),
    "100 masks pasted into 800x1333": paste_masks(),
    "Convolution, 64 filters of 200x336x64": convolution(200, 336, 64, 64),
    "Convolution, 256 filters of 50x84x256": convolution(50, 84, 256, 256),
}


def first_of(found):
    """The first tensor of a result, the indices of an NMS."""
    return found if hasattr(found, "shape") else found[0]


def check(name, found, tensors):
    """That a result is that of the peer, which computes in float32."""
    case = CASES[name]
    tensors = [each.float() if each.dtype == torch.float16 else each for each in tensors]
    found, wanted = first_of(found), case.exact(*tensors)
    if not case.tolerance:
        found = found[found >= 0]
        assert torch.equal(found.sort()[0], wanted.sort()[0]), f"{name}: other boxes than the peer's"
        return
    if found.shape != wanted.shape:  # NHWC
        wanted = wanted.permute(0, 2, 3, 1)
    difference = (found.float() - wanted).abs().max().item()
    assert difference <= case.tolerance, f"{name}: {difference} from the peer's"


def tensors_of(name):
    """The arguments of a case, on the GPU."""
    return [torch.from_numpy(each).cuda() for each in CASES[name].arrays()]
