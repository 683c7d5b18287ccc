"""Models for tests and benchmarks: real architectures, seeded weights, and something to detect.

Fresh torchvision detectors find nothing, or the same thing everywhere: their activations die or explode with
the depth, and their scores lie under the threshold. `detection_model` makes up for the missing training.
It fits the batch norms to a few images, does the like to the layers without one, and brings the last
layers to a spread at which some tens of boxes come out, of many classes, overlapping enough for the
non-maximum suppression to have work. Residual blocks add little to what they are given, as in trained
networks. No layer then magnifies rounding errors, so that what two implementations find can be compared, also
in half precision.
"""

import math
import re

import torch
import torchvision
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

DETECTION_MODELS = (
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)

LAST_NORM = {  # of a block that adds to what it is given
    torchvision.models.resnet.Bottleneck: lambda block: block.bn3,
    torchvision.models.mobilenetv3.InvertedResidual: lambda block: block.block[-1][1],
}
ADDED = 0.2  # the standard deviation of what such a block adds: of as much, rounding errors would grow

LAST_LAYERS = {  # the standard deviation of what they give, and the background's lead over all classes
    r"rpn\.head\.cls_logits": (1.0, None),
    r"rpn\.head\.bbox_pred": (0.3, None),
    r"roi_heads\.box_predictor\.cls_score": (2.0, 5.5),
    r"roi_heads\.box_predictor\.bbox_pred": (1.0, None),
    r"roi_heads\.mask_predictor\.mask_fcn_logits": (3.0, None),
    r"roi_heads\.keypoint_predictor\.kps_score_lowres": (3.0, None),
    r"head\.classification_head\.cls_logits": (0.6, None),
    r"head\.regression_head\.bbox_reg": (1.0, None),
    r"head\.classification_head\.module_list\.\d": (1.5, 7.5),
    r"head\.classification_head\.module_list\.\d\.1": (1.5, 7.0),
    r"head\.regression_head\.module_list\.\d(\.1)?": (0.5, None),
}


def detection_model(name, seed=0, images=None, **options):
    """One of DETECTION_MODELS in evaluation, with weights that depend on nothing but the arguments.

    It is fitted to `images`, by default seeded ones, and finds most in such as these. `options` go to
    torchvision, such as `min_size` and `max_size`, which bound the size it works at.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        build = getattr(torchvision.models.detection, name)
        model = build(weights=None, weights_backbone=None, **options).eval()
        _fit(model, images or [random_image(seed=index) for index in range(4)])
    return model


def retinanet_of_mlperf(seed=0, images=None, classes=264, **options):
    """The detector of MLPerf's inference benchmark: a RetinaNet on ResNeXt-50; fitted like the others."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        backbone = resnet_fpn_backbone(
            backbone_name="resnext50_32x4d",
            weights=None,
            norm_layer=nn.BatchNorm2d,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(256, 256),
        )
        model = RetinaNet(backbone, classes, **options).eval()
        _fit(model, images or [random_image(seed=index) for index in range(4)])
    return model


def tiny_detector(seed=0, classes=8, **options):
    """A RetinaNet of a few layers, which is imported, compiled and run in seconds; fitted like the others."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        widths = (3, 16, 16, 16)
        layers = [nn.Sequential(nn.Conv2d(*pair, 3, 2, 1), nn.ReLU()) for pair in zip(widths, widths[1:])]
        backbone = nn.Sequential(*layers)
        backbone.out_channels = widths[-1]
        anchors = AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))
        model = RetinaNet(backbone, classes, anchor_generator=anchors, **options).eval()
        _fit(model, [random_image(seed=index) for index in range(4)])
    return model


def tiny_mask_rcnn(seed=0, images=None, classes=91, **options):
    """A Mask R-CNN of a few layers, with two levels of features; fitted like the others."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = MaskRCNN(
            TwoLevels(),
            **_of_few_layers(classes),
            mask_roi_pool=MultiScaleRoIAlign(["0", "1"], 14, 2),
            mask_head=MaskRCNNHeads(16, (16,), 1),
            mask_predictor=MaskRCNNPredictor(16, 16, classes),
            **options,
        ).eval()
        _fit(model, images or [random_image(seed=index) for index in range(4)])
    return model


def tiny_faster_rcnn(seed=0, images=None, classes=91, **options):
    """The same without masks."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = FasterRCNN(TwoLevels(), **_of_few_layers(classes), **options).eval()
        _fit(model, images or [random_image(seed=index) for index in range(4)])
    return model


def _of_few_layers(classes):
    """The options of a Faster R-CNN and of those that are made of it."""
    return {
        "rpn_anchor_generator": AnchorGenerator(((16,), (32,)), ((0.5, 1.0, 2.0),) * 2),
        "rpn_pre_nms_top_n_test": 300,
        "rpn_post_nms_top_n_test": 200,
        "box_roi_pool": MultiScaleRoIAlign(["0", "1"], 7, 2),
        "box_head": TwoMLPHead(16 * 7 * 7, 32),
        "box_predictor": FastRCNNPredictor(32, classes),
    }


class TwoLevels(nn.Module):
    out_channels = 16

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 7, 8, 3), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())

    def forward(self, images):
        first = self.first(images)
        return {"0": first, "1": self.second(first)}


def random_image(height=128, width=128, seed=0):
    """A seeded 3xHxW image between 0 and 1 that has edges and areas: noise at three scales."""
    generator = torch.Generator().manual_seed(seed)
    layers = (
        torch.rand(1, 3, cells, cells, generator=generator, dtype=torch.float32) for cells in (4, 16, 64)
    )
    return sum(torch.nn.functional.interpolate(layer, (height, width)) for layer in layers)[0] / 3


def _fit(model, images):
    """In one run: each layer is fitted when it is first reached, so what follows sees its new outputs."""
    norms = [(part, part.momentum) for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm, _ in norms:
        norm.train().momentum = 1.0
    for block in model.modules():
        if type(block) in LAST_NORM and getattr(block, "use_res_connect", True):
            LAST_NORM[type(block)](block).weight *= ADDED
    hooks = []
    for name, layer in model.named_modules():
        if getattr(layer, "bias", None) is not None and not isinstance(layer, torch.nn.BatchNorm2d):
            spread, background = _wanted(name)
            if background is not None:
                layer.bias[:: _classes(model)] += background + math.log(_classes(model) - 1)
            hooks.append(layer.register_forward_hook(_fitting(spread)))
    model(images)
    for hook in hooks:
        hook.remove()
    for norm, momentum in norms:
        norm.eval().momentum = momentum


def _wanted(name):
    found = (wanted for pattern, wanted in LAST_LAYERS.items() if re.fullmatch(pattern, name))
    return next(found, (1.0, None))


def _classes(model):
    """With the background."""
    if hasattr(model, "roi_heads"):
        return model.roi_heads.box_predictor.cls_score.out_features
    head = model.head.classification_head
    return head.num_columns if hasattr(head, "num_columns") else head.num_classes


def _fitting(spread):
    """A hook that changes the layer so that each channel has mean 0, and all have the standard deviation."""
    fitted = []

    def fit(layer, _, outputs):
        if fitted:
            return None
        fitted.append(layer)
        others = [axis for axis in range(outputs.dim()) if axis != 1]
        mean = outputs.mean(others, keepdim=True)
        factor = spread / (outputs - mean).std()
        wanted = layer.bias.clone()
        layer.weight *= factor
        layer.bias.copy_(wanted + (wanted - mean.flatten()) * factor)
        return (outputs - mean) * factor + wanted.view_as(mean)

    return fit
