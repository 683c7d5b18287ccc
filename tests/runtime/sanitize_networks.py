"""Whole networks for NVIDIA's checkers, small ones, from images to detections:

    python -m tests.runtime.sanitize_networks FOLDER maskrcnn
    compute-sanitizer --tool memcheck python -m tests.runtime.sanitize_networks FOLDER maskrcnn

The first run compiles, and the second only loads, since everything takes long under the checkers. Other
networks are retinanet and yolov8n, and another tool is racecheck.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks._common import tensor_core_target
from tests.benchmarks._models import of_torchvision, of_yolo
from tests.models.zoo import random_image, tiny_mask_rcnn
from tests.zoo.outcome import imported
from tvm_passes import detection_pipeline, runtime

import tvm

SIZE = (128, 160)


def mask_rcnn():
    """A tiny one: with ResNet-50, whose thousand regions take most of the time, racecheck needs an hour."""
    images = [random_image(*SIZE)]
    return tiny_mask_rcnn(min_size=SIZE[0], max_size=SIZE[1]), images


NETWORKS = {
    "maskrcnn": mask_rcnn,
    "retinanet": partial(of_torchvision, "retinanet_resnet50_fpn", SIZE),
    "yolov8n": partial(of_yolo, "yolov8n", 128),
}


def main(folder, name):
    if not tvm.cuda().exist:
        sys.exit("needs an NVIDIA GPU")
    folder = Path(folder) / name
    if not folder.exists():
        save(folder, name)
    inputs = torch.load(folder / "inputs.pt")
    plain, captured = (runtime.load(folder / "model", cuda_graph=graph) for graph in (False, True))
    for scale in (1.0, 0.3, 0.0):
        images = [scale * each.cuda() for each in inputs]
        found, again = plain(*images), captured(*images)
        for output in found:
            np.testing.assert_allclose(found[output].cpu(), again[output].cpu(), rtol=1e-3, atol=1e-3)
    print(f"{name}: equal, as a CUDA graph and without")


def save(folder, name):
    network, inputs = NETWORKS[name]()
    target = tensor_core_target("cudnn-frontend")
    mod = detection_pipeline(target, outputs="padded")(imported(network, inputs))
    folder.mkdir(parents=True)
    runtime.save(folder / "model", runtime.build_library(mod, target), mod, target)
    torch.save(inputs, folder / "inputs.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
