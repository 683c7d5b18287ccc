"""The whole networks that `bench_models` times, with seeded weights, and their inputs."""

from dataclasses import dataclass
from functools import partial
from typing import Callable

from tests.models.super_resolution import channels_of, super_resolution_model
from tests.models.yolo import yolo_model
from tests.models.zoo import detection_model, random_image


@dataclass
class Network:
    """What is timed: `build()` gives the network and its inputs, on the CPU and in float32."""

    build: Callable
    pipeline: str = "detection"
    in_half: bool = False  # whether torch has all of the network in float16, rather than autocast


def is_of_torchvision(network):
    """Such a detector takes a list of images."""
    return type(network).__module__.startswith("torchvision")


def call_of(network, inputs):
    """A call of the network without arguments."""
    return partial(network, inputs if is_of_torchvision(network) else inputs[0])


def of_torchvision(name, size=(800, 1333), batch=1, **options):
    if not name.startswith("ssd"):
        options = {"min_size": size[0], "max_size": max(size), **options}
    images = [random_image(*size, seed=index) for index in range(batch)]
    return detection_model(name, **options), images


def mobile_net(size=(320, 320)):
    """Fitted to images of its size: else it magnifies rounding errors, and close scores swap."""
    images = [random_image(*size, seed=index) for index in range(4)]
    return of_torchvision("fasterrcnn_mobilenet_v3_large_320_fpn", size, images=images)


def of_yolo(name, size=640):
    images = [random_image(size, size)[None]]
    return yolo_model(name, images=images), images


def rt_detr(size=640):
    from tests.zoo.models import MODELS

    return MODELS["RTDetr"].build()[0], [random_image(size, size)[None]]


def of_super_resolution(name, size, **options):
    return super_resolution_model(name, **options), [random_image(*size)[None, : channels_of(name)]]


R50 = {"RetinaNet": "retinanet", "FCOS": "fcos", "Faster R-CNN": "fasterrcnn", "Mask R-CNN": "maskrcnn"}
R50["Keypoint R-CNN"] = "keypointrcnn"
ON_GPU = {
    **{f"{name} R50": Network(partial(of_torchvision, f"{of}_resnet50_fpn")) for name, of in R50.items()},
    "RetinaNet R50, 8 of 800x800": Network(partial(of_torchvision, "retinanet_resnet50_fpn", (800, 800), 8)),
    "Mask R-CNN R50, 8": Network(partial(of_torchvision, "maskrcnn_resnet50_fpn", batch=8)),
    "SSD300": Network(partial(of_torchvision, "ssd300_vgg16", (640, 640))),
    "SSDlite320": Network(partial(of_torchvision, "ssdlite320_mobilenet_v3_large", (640, 640))),
    "YOLOv8n": Network(partial(of_yolo, "yolov8n")),
    "YOLO11s": Network(partial(of_yolo, "yolo11s")),
    "RT-DETR R50": Network(rt_detr),
    "SRResNet x4": Network(partial(of_super_resolution, "srresnet", (270, 480)), "subpixel", True),
    "Compact x4": Network(partial(of_super_resolution, "compact", (540, 960)), "subpixel", True),
    "RRDB x4": Network(partial(of_super_resolution, "rrdb", (270, 480)), "subpixel", True),
}
ON_CPU = {
    **{
        f"{name} R50, {height}x{width}": Network(
            partial(of_torchvision, f"{R50[name]}_resnet50_fpn", (height, width))
        )
        for name in ("Mask R-CNN", "RetinaNet")
        for height, width in ((256, 320), (800, 1333))
    },
    "Faster R-CNN MobileNet, 320x320": Network(mobile_net),
    "SSDlite320, 320x320": Network(partial(of_torchvision, "ssdlite320_mobilenet_v3_large", (320, 320))),
    "YOLOv8n, 640x640": ON_GPU["YOLOv8n"],
    "RT-DETR R50, 640x640": ON_GPU["RT-DETR R50"],
    **{
        f"{name}, 180x320": Network(partial(of_super_resolution, of, (180, 320), **options), "subpixel")
        for name, of, options in (
            ("EDSR-baseline x4", "edsr_x4", {}),
            ("Sub-pixel network of apache/tvm #4523", "thread", {}),
            ("ESPCN x4", "espcn", {"scale": 4}),
        )
    },
}
