"""Small detectors of torchvision, whose random weights find something in `image`.

Their thresholds leave fewer detections, and proposals, than there can be: so each threshold has an effect.
"""

from collections import OrderedDict

import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign

CLASSES, CHANNELS = 5, 32
SIZE = {"min_size": 64, "max_size": 96}
LEVELS = ["0", "1"]
ANCHORS = AnchorGenerator(((8, 16), (16, 32)), ((0.5, 1.0, 2.0),) * 2)
SQUARES = AnchorGenerator(((8,), (16,)), ((1.0,),) * 2)
NAMES = ("boxes", "scores", "labels", "masks", "keypoints", "keypoints_scores")


def image():
    return torch.rand(3, 50, 70, generator=torch.Generator().manual_seed(1))


def rcnn(kind=detection.FasterRCNN, score_thresh=0.4, **heads):
    return kind(
        TwoLevels(),
        rpn_anchor_generator=ANCHORS,
        rpn_pre_nms_top_n_test=40,
        rpn_post_nms_top_n_test=40,
        rpn_nms_thresh=0.3,
        rpn_score_thresh=0.5,
        box_roi_pool=MultiScaleRoIAlign(LEVELS, 3, 2),
        box_head=TwoMLPHead(CHANNELS * 3 * 3, 16),
        box_predictor=FastRCNNPredictor(16, CLASSES),
        box_score_thresh=score_thresh,
        box_detections_per_img=20,
        **heads,
        **SIZE,
    )


def mask_rcnn(score_thresh=0.4):
    return rcnn(
        detection.MaskRCNN,
        score_thresh,
        mask_roi_pool=MultiScaleRoIAlign(LEVELS, 4, 2),
        mask_head=MaskRCNNHeads(CHANNELS, (8,), 1),
        mask_predictor=MaskRCNNPredictor(8, 8, CLASSES),
    )


def keypoint_rcnn():
    return rcnn(
        detection.KeypointRCNN,
        0.7,
        keypoint_roi_pool=MultiScaleRoIAlign(LEVELS, 4, 2),
        keypoint_head=KeypointRCNNHeads(CHANNELS, (8,)),
        keypoint_predictor=KeypointRCNNPredictor(8, 4),
    )


def masks_and_keypoints():
    """A Mask R-CNN with the heads of a Keypoint R-CNN too."""
    model, other = mask_rcnn(0.35), keypoint_rcnn().roi_heads
    for part in ("roi_pool", "head", "predictor"):
        setattr(model.roi_heads, f"keypoint_{part}", getattr(other, f"keypoint_{part}"))
    return model


def retinanet():
    best = BEST | {"score_thresh": 0.99, "detections_per_img": 30}
    return detection.RetinaNet(TwoLevels(), CLASSES, anchor_generator=ANCHORS, **best, **SIZE)


def fcos():
    return detection.FCOS(TwoLevels(), CLASSES, anchor_generator=SQUARES, **BEST, **SIZE)


def ssd():
    backbone = TwoLevels()
    backbone.out_channels = [CHANNELS, CHANNELS]
    return SSD(
        backbone, DefaultBoxGenerator([[2], [2, 3]]), (64, 64), CLASSES, **BEST | {"score_thresh": 0.9}
    )


BEST = {"score_thresh": 0.3, "detections_per_img": 20, "topk_candidates": 50}
KINDS = {
    "faster": rcnn,
    "mask": mask_rcnn,
    "keypoint": keypoint_rcnn,
    "both": masks_and_keypoints,
    "retinanet": retinanet,
    "fcos": fcos,
    "ssd": ssd,
}


def detector(kind):
    torch.manual_seed(0)
    model = KINDS[kind]()
    for weights in model.parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=(3 / weights[0].numel()) ** 0.5)
    return model.eval()


def found_by_torchvision(model):
    with torch.no_grad():
        (found,) = model([image()])
    return [found[name].numpy() for name in NAMES if name in found]


class TwoLevels(nn.Module):
    out_channels = CHANNELS

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 7, 8, 3)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)

    def forward(self, images):
        first = self.first(images).relu()
        return OrderedDict(zip(LEVELS, (first, self.second(first).relu())))
