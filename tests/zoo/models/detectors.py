"""The detectors, each with what builds it.

Nothing is downloaded: weights are seeded, norms are fitted to random images, and the last layers are scaled,
so that something is detected.
"""

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Optional
from unittest import mock

import torch
import torchvision

from tests.models.zoo import detection_model, random_image

from .registry import SIZE, Outputs, image, model

# --- torchvision

TORCHVISION = {
    "fasterrcnn_resnet50_fpn": "R-CNN",
    "fasterrcnn_resnet50_fpn_v2": "R-CNN",
    "fasterrcnn_mobilenet_v3_large_fpn": "R-CNN",
    "fasterrcnn_mobilenet_v3_large_320_fpn": "R-CNN",
    "maskrcnn_resnet50_fpn": "R-CNN",
    "maskrcnn_resnet50_fpn_v2": "R-CNN",
    "keypointrcnn_resnet50_fpn": "R-CNN",
    "retinanet_resnet50_fpn": "RetinaNet",
    "retinanet_resnet50_fpn_v2": "RetinaNet",
    "fcos_resnet50_fpn": "FCOS",
    "ssd300_vgg16": "SSD",
    "ssdlite320_mobilenet_v3_large": "SSD",
}


def of_torchvision(name):
    sizes = {} if name.startswith("ssd") else {"min_size": 256, "max_size": SIZE}
    return detection_model(name, **sizes), [random_image(256, SIZE)]


for name, family in TORCHVISION.items():
    model(name, "torchvision", family)(functools.partial(of_torchvision, name))

# --- Ultralytics, which is used only where it is installed, for its licence is AGPL

EXPORTED = {
    **{name: {} for name in ("yolov3-tiny", "yolov5n", "yolov5n6", "yolov6n", "yolov8n", "yolov9t")},
    **{name: {} for name in ("yolo11n", "yolo12n", "yolov8n-seg", "yolo11n-seg", "yolov8n-pose")},
    **{name: {} for name in ("yolo11n-pose", "yolo11n-obb", "yolov8n-p2", "yolov8n-ghost")},
    "yolov8n, simplified": {"simplify": True},
    "yolo11n, simplified": {"simplify": True},
    "yolov8n, agnostic": {"agnostic_nms": True},
    "yolov8n, dynamic axes": {"dynamic": True},
    "yolo11n, dynamic axes": {"dynamic": True},
    "yolov8n, opset 12": {"opset": 12},
}


def yolo(name):
    from ultralytics import YOLO

    torch.manual_seed(0)
    with torch.no_grad():
        network = YOLO(f"{name}.yaml")
        fit(network.model, [random_image(SIZE, SIZE, seed)[None] for seed in range(2)])
        head = network.model.model[-1]
        scale_outputs(head.cv3, network.model, spread=2.0, mean=-5.0)
        scale_outputs(head.cv2, network.model, spread=1.5, mean=0.5)
    return network


def exported_yolo(name, options):
    options = {"simplify": False, "opset": 17, **options}
    made = yolo(name.split(",")[0]).export(format="onnx", nms=True, imgsz=SIZE, **options)
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    shutil.move(made, path)
    return path, [image()]


def yolo_without_nms(name):
    network = yolo(name).model.eval()
    return Outputs(network, lambda network, x: first(network(x))), [image()]


for name, options in EXPORTED.items():
    model(f"{name}, nms=True", "ultralytics", "YOLO")(functools.partial(exported_yolo, name, options))
for name in ("yolov8n", "yolov10n"):
    model(name, "ultralytics", "YOLO without NMS")(functools.partial(yolo_without_nms, name))


def first(value):
    return value[0] if isinstance(value, (tuple, list)) else value


# --- transformers

SMALL = {"encoder_layers": 2, "decoder_layers": 2, "use_pretrained_backbone": False}


def best_class(output):
    """As DETR takes the best class of each query, without the last, which is none."""
    best = output.logits.softmax(-1)[0, :, :-1].max(-1)
    return best.values, best.indices, output.pred_boxes[0]


def best_pairs(output, most=100):
    """As RT-DETR takes the best pairs of query and class."""
    scores = output.logits[0].sigmoid()
    best, places = scores.flatten().topk(most)
    return best, places % scores.shape[1], output.pred_boxes[0][places // scores.shape[1]]


def of_transformers(kind, select, options):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**options)
    network = getattr(transformers, f"{kind}ForObjectDetection")(config)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1 and weight.std() < 1e-2:  # else all queries tie, and a top-k may take any
                weight.normal_(std=0.05)
        fit(network, [random_image(256, 256, seed)[None] for seed in range(2)])
    return Outputs(network, lambda network, x: select(network(pixel_values=x))), [image(256)]


BACKBONE = {"use_timm_backbone": False, "backbone": None}
TRANSFORMERS = {
    "Detr": (best_class, {**SMALL, **BACKBONE}),
    "ConditionalDetr": (best_pairs, {**SMALL, **BACKBONE}),
    "DeformableDetr": (best_pairs, {**SMALL, **BACKBONE}),
    **{
        name: (best_pairs, {"freeze_backbone_batch_norms": False}) for name in ("RTDetr", "RTDetrV2", "DFine")
    },
    "Yolos": (best_class, {"num_hidden_layers": 3, "image_size": [256, 256]}),
}
for name, (select, options) in TRANSFORMERS.items():
    model(name, "transformers", "DETR")(functools.partial(of_transformers, name, select, options))

# --- effdet


def efficientdet(name, soft):
    from effdet import DetBenchPredict, EfficientDet, get_efficientdet_config

    torch.manual_seed(0)
    config = get_efficientdet_config(name)
    config.image_size, config.soft_nms = [SIZE, SIZE], soft
    network = EfficientDet(config, pretrained_backbone=False)
    with torch.no_grad():
        fit(network, [random_image(SIZE, SIZE, seed)[None] for seed in range(2)])
        scale_outputs([network.class_net.predict], network.eval(), spread=1.0, mean=-5.0)
        scale_outputs([network.box_net.predict], network, spread=0.5, mean=0.0)
    return DetBenchPredict(network), [image()]


for name in ("tf_efficientdet_lite0", "efficientdet_d0"):
    model(name, "effdet", "EfficientDet")(functools.partial(efficientdet, name, False))
model("tf_efficientdet_lite0, soft", "effdet", "EfficientDet")(
    functools.partial(efficientdet, "tf_efficientdet_lite0", True)
)

# --- faces


def mtcnn(part, size):
    from facenet_pytorch.models import mtcnn as nets

    torch.manual_seed(0)
    return getattr(nets, part)(pretrained=False), [image(size)]


for part, size in (("PNet", 120), ("RNet", 24), ("ONet", 48)):
    model(f"MTCNN {part}", "facenet_pytorch", "faces")(functools.partial(mtcnn, part, size))


class Faces(torch.nn.Module):
    """A RetinaFace with what its package does behind it in NumPy, as tensors."""

    def __init__(self, network, priors, decode, decode_points):
        super().__init__()
        self.network, self.decode, self.decode_points = network, decode, decode_points
        self.register_buffer("priors", priors)
        with torch.no_grad():
            fit(network, [random_image(SIZE, SIZE, seed)[None] for seed in range(2)])
            scale_outputs(network.ClassHead, network.eval(), spread=1.5, mean=0.0)
            scale_outputs(network.BboxHead, network, spread=1.0, mean=0.0)

    def forward(self, x):
        boxes, scores, points = self.network(x)
        boxes = self.decode(boxes[0], self.priors, (0.1, 0.2)) * SIZE
        points = self.decode_points(points[0], self.priors, (0.1, 0.2)) * SIZE
        scores = scores.softmax(-1)[0, :, 1]
        found = torch.where(scores > 0.9)[0]
        boxes, points, scores = boxes[found], points[found], scores[found]
        order = scores.argsort(descending=True)
        boxes, points, scores = boxes[order], points[order], scores[order]
        kept = torchvision.ops.nms(boxes, scores, 0.4)
        return boxes[kept], scores[kept], points[kept]


@model("RetinaFace", "retinaface_pytorch", "faces")
def retinaface():
    from retinaface import box_utils, prior_box
    from retinaface.network import RetinaFace

    torch.manual_seed(0)
    layers = {"layer2": 1, "layer3": 2, "layer4": 3}
    network = RetinaFace("Resnet50", False, in_channels=256, return_layers=layers, out_channels=256)
    sizes = [[16, 32], [64, 128], [256, 512]]
    priors = prior_box.priorbox(sizes, [8, 16, 32], clip=False, image_size=(SIZE, SIZE))
    return Faces(network, priors, box_utils.decode, box_utils.decode_landm), [image()]


def of_facexlib(backbone):
    from facexlib.detection import retinaface, retinaface_utils

    torch.manual_seed(0)
    network = retinaface.RetinaFace(backbone, phase="train", device="cpu")
    priors = retinaface_utils.PriorBox(network.cfg, image_size=(SIZE, SIZE)).forward()
    return Faces(network, priors, retinaface_utils.decode, retinaface_utils.decode_landm), [image()]


for backbone in ("resnet50", "mobile0.25"):
    model(f"RetinaFace, {backbone}", "facexlib", "faces")(functools.partial(of_facexlib, backbone))


@model("YuNet", "kornia", "faces")
def yunet():
    from kornia.contrib import face_detection

    torch.manual_seed(0)
    network = face_detection.YuNet("test", pretrained=False)
    with mock.patch.object(face_detection, "YuNet", lambda *_, **__: network):
        detector = face_detection.FaceDetector()
    detector.nms = torchvision.ops.nms  # theirs is a loop that no trace can follow
    return Outputs(detector, lambda network, x: network(x)[0]), [255 * image()]


# --- other DETR


@model("RT-DETR", "kornia", "DETR")
def rtdetr():
    from kornia.models.rt_detr import RTDETR, RTDETRConfig

    torch.manual_seed(0)
    network = RTDETR.from_config(RTDETRConfig("resnet18d", num_classes=80, input_size=256))
    return Outputs(network.eval(), lambda network, x: best_of(*network(x))), [image(256)]


def best_of(logits, boxes, most=100):
    scores, places = logits[0].sigmoid().flatten().topk(most)
    return scores, places % logits.shape[2], boxes[0][places // logits.shape[2]]


@model("RF-DETR Nano", "rfdetr", "DETR")
def rfdetr():
    from rfdetr.config import RFDETRNanoConfig
    from rfdetr.models.lwdetr import build_model_from_config

    torch.manual_seed(0)
    network = build_model_from_config(RFDETRNanoConfig(pretrain_weights=None, device="cpu"))

    def outputs(network, x):
        found = network(x)
        return best_of(found["pred_logits"], found["pred_boxes"])

    return Outputs(network.eval(), outputs), [image(384)]


# --- text


def text_detector():
    import rapidocr_onnxruntime

    (path,) = (Path(rapidocr_onnxruntime.__file__).parent / "models").glob("*det*.onnx")
    return path, [image()]


model("text detection", "rapidocr_onnxruntime", "text")(text_detector)


@model("DBNet", "doctr", "text")
def dbnet():
    from doctr.models import detection

    torch.manual_seed(0)
    network = detection.db_mobilenet_v3_large(pretrained=False, pretrained_backbone=False)
    return Outputs(network.eval(), lambda network, x: network(x, return_model_output=True)["out_map"]), [
        image()
    ]


# --- as they are written by hand


class OneStage(torch.nn.Module):
    """A few convolutions, a box and the scores of all classes for each pixel."""

    def __init__(self, classes=20):
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 16, 32, 32)
        layers = [torch.nn.Conv2d(*pair, 3, 2, 1) for pair in zip(widths, widths[1:])]
        self.body = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.ReLU())))
        self.head = torch.nn.Conv2d(widths[-1], 4 + classes, 1)
        with torch.no_grad():
            scale_outputs([self.head], lambda x: self.head(self.body(x)), spread=1.5, mean=0.0)

    def forward(self, x):
        maps = self.head(self.body(x))[0].flatten(1).T
        corner, size = maps[:, :2].sigmoid() * SIZE, maps[:, 2:4].sigmoid() * 12
        return self.detections(torch.cat([corner, corner + size], 1), maps[:, 4:].sigmoid())


class NmsOfEachClass(OneStage):
    def detections(self, boxes, scores):
        found = []
        for one in range(scores.shape[1]):
            mask = scores[:, one] > 0.9
            of_class, inside = scores[mask, one], boxes[mask]
            kept = torchvision.ops.nms(inside, of_class, 0.5)[:20]
            rows = torch.cat([inside[kept], of_class[kept, None]], 1)
            ids = torch.full((kept.shape[0], 1), float(one), device=rows.device)
            found.append(torch.cat([rows, ids], 1))
        found = torch.cat(found)
        return found[found[:, 4].argsort(descending=True)[:50]]


class BestClassOfEach(OneStage):
    def detections(self, boxes, scores):
        scores, ids = scores.max(1)
        mask = scores > 0.9
        boxes, scores, ids = boxes[mask], scores[mask], ids[mask]
        kept = torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:50]
        return boxes[kept], scores[kept], ids[kept]


class Shifted(OneStage):
    def detections(self, boxes, scores):
        rows, ids = torch.where(scores > 0.9)
        boxes, scores = boxes[rows], scores[rows, ids]
        order = scores.argsort(descending=True)[:200]
        boxes, scores, ids = boxes[order], scores[order], ids[order]
        kept = torchvision.ops.nms(boxes + ids[:, None] * 7680.0, scores, 0.5)
        return torch.cat([boxes[kept], scores[kept, None], ids[kept, None].float()], 1)


class FloatColumns(OneStage):
    """As YOLOX does: scores and class ids are columns of one tensor."""

    def detections(self, boxes, scores):
        best, ids = scores.max(1, keepdim=True)
        rows = torch.cat([boxes, best.sqrt(), best.sqrt(), ids.float()], 1)
        rows = rows[(rows[:, 4] * rows[:, 5] >= 0.9).squeeze()]
        kept = torchvision.ops.batched_nms(rows[:, :4], rows[:, 4] * rows[:, 5], rows[:, 6], 0.5)
        return rows[kept]


class TwoFilters(OneStage):
    """As Ultralytics does in PyTorch: a filter of rows, one of columns, and an offset that is a column."""

    def detections(self, boxes, scores):
        rows = torch.cat([boxes, scores], 1)
        rows = rows[scores.amax(1) > 0.8]
        box, of_class = rows.split((4, scores.shape[1]), 1)
        best, ids = of_class.max(1, keepdim=True)
        rows = torch.cat((box, best, ids.float()), 1)[best.view(-1) > 0.9]
        rows = rows[rows[:, 4].argsort(descending=True)[:300]]
        offsets = rows[:, 5:6] * 7680
        kept = torchvision.ops.nms(rows[:, :4] + offsets, rows[:, 4], 0.5)
        return rows[kept[:50]]


@torch.jit.script
def detections_of_each(images: int, boxes, scores, ids, size: Optional[torch.Tensor] = None, most: int = 50):
    """As EfficientDet does: a scripted loop over images, options, and padding to a fixed number."""
    found = []
    for at in range(images):
        box, score, of_class = boxes[at], scores[at], ids[at]
        assert box.shape[-1] == 4
        if size is not None:
            box = box.clamp(min=0).min(size)
        kept = torchvision.ops.boxes.batched_nms(box, score, of_class, 0.5)[:most]
        rows = torch.cat([box[kept], score[kept, None], of_class[kept, None].float() + 1], 1)
        if len(kept) < most:
            padding = torch.zeros((most - len(kept), 6), device=rows.device, dtype=rows.dtype)
            rows = torch.cat([rows, padding], 0)
        found.append(rows)
    return torch.stack(found, 0)


class Scripted(OneStage):
    def detections(self, boxes, scores):
        best, places = scores.flatten().topk(200)
        ids, rows = places % scores.shape[1], places // scores.shape[1]
        return detections_of_each(1, boxes[rows][None], best[None], ids[None])


class Peaks(OneStage):
    """As CenterNet does: no NMS, but the peaks of a map of scores."""

    def forward(self, x):
        maps = self.head(self.body(x))
        scores = maps[:, 4:].sigmoid()
        peaks = scores * (torch.nn.functional.max_pool2d(scores, 3, 1, 1) == scores)
        best, places = peaks.flatten(1).topk(50)
        ids, place = places // peaks[0, 0].numel(), places % peaks[0, 0].numel()
        sizes = maps[:, :4].flatten(2).gather(2, place[:, None].expand(-1, 4, -1))
        return best, ids, sizes


WRITTEN = NmsOfEachClass, BestClassOfEach, Shifted, FloatColumns, TwoFilters, Scripted, Peaks
for written in WRITTEN:
    model(written.__name__, "written by hand", "one stage")(lambda written=written: (written(), [image()]))


# --- fitting


def fit(network, images):
    """Fit all batch norms to some images."""
    norms = [part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    network.train()
    with torch.no_grad():
        for each in images:
            network(torch.cat([each, each.flip(3)]))
    network.eval()


def scale_outputs(branches, network, spread, mean):
    """Make the last convolution of each branch give numbers of this standard deviation and mean."""
    last = [
        [part for part in branch.modules() if isinstance(part, torch.nn.Conv2d)][-1] for branch in branches
    ]
    for each in last:
        if each.bias is not None:
            each.bias.fill_(0)
    seen = {}
    hooks = [each.register_forward_hook(lambda layer, _, out: seen.update({layer: out})) for each in last]
    network(image())
    for each, hook in zip(last, hooks):
        hook.remove()
        each.weight *= spread / seen[each].std()
        if each.bias is not None:
            each.bias.fill_(mean)
