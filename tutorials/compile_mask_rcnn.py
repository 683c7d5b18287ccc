"""Import Mask R-CNN, apply the passes, compile it, run it, and compare with PyTorch.

    python -m tutorials.compile_mask_rcnn

Run it in the root of a clone. It takes about two minutes on two cores, most of them TVM's compiler.
"""

import argparse
import time
import urllib.error

import numpy as np
import torch
import torchvision
from rich.console import Console

import frontends
import tvm_passes
from tests.models.zoo import detection_model, picture

console = Console()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=160)
    parser.add_argument("--width", type=int, default=208)
    parser.add_argument("--weights", choices=("seeded", "trained"), default="seeded")
    args = parser.parse_args()

    model = mask_rcnn(args.weights, args.height, args.width)
    image = picture(args.height, args.width)

    with step("Import from PyTorch"):
        mod, params = frontends.from_pytorch(model, image)
    with step("Apply the passes"):
        report = tvm_passes.explain(mod)
    console.print(report)
    with step("Compile for the CPU"):
        compiled = tvm_passes.runtime.compile(report.module, "llvm", params)
    with step("Run"):
        found = compiled(image)
    compare(model, image, found)


def mask_rcnn(weights, height, width):
    """Trained weights where torchvision can load them; else seeded ones that find something, said so."""
    size = {"min_size": min(height, width), "max_size": max(height, width)}
    if weights == "trained":
        try:
            return torchvision.models.detection.maskrcnn_resnet50_fpn(weights="DEFAULT", **size).eval()
        except (urllib.error.URLError, OSError) as reason:
            console.print(f"The trained weights cannot be loaded ({reason}).")
    console.print("The weights are random, seeded and fitted to find something: the detections mean nothing.")
    return detection_model("maskrcnn_resnet50_fpn", **size)


def compare(model, image, found):
    """Print how many of PyTorch's detections TVM finds too, and how far these are from them."""
    with torch.no_grad():
        (expected,) = model([image])
    expected, found = ({name: of[name].numpy() for name in expected} for of in (expected, found))
    pairs = list(counterparts(expected, found))
    console.print(f"TVM finds {len(pairs)} of PyTorch's {len(expected['boxes'])} detections. They differ by")
    for name in expected:
        difference = max((np.abs(expected[name][i] - found[name][j]).max() for i, j in pairs), default=0)
        console.print(f"  {difference:.1e} at most in {name}")


def counterparts(expected, found):
    """Index pairs of the detections of one class that are less than a pixel apart: their order may differ."""
    for i, (box, label) in enumerate(zip(expected["boxes"], expected["labels"])):
        distance = np.abs(found["boxes"] - box).max(axis=1, initial=0)
        distance[found["labels"] != label] = np.inf
        if len(distance) and distance.min() < 1:
            yield i, int(distance.argmin())


class step:
    """Say what goes on and, at the end, how long it took."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.status = console.status(self.name)
        self.status.start()
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.status.stop()
        console.print(f"{self.name}: {time.perf_counter() - self.start:.1f} s")


if __name__ == "__main__":
    main()
