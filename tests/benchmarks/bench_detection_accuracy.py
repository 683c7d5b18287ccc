"""Measure how much of what torchvision's Mask R-CNN finds in float32 is found in float16.

python -m tests.benchmarks.bench_detection_accuracy
"""

import argparse

import torch

from tests.benchmarks import _common as common
from tests.benchmarks._detector import SIZE, add_options, begin, built, environment, prepared
from tests.models.detectors import share_matched
from tests.models.shapes import drawn

COUNTS = 6, 12, 40  # shapes in an image
IMAGES = 32  # with each

TEXT = """The share of torchvision's eager float32 detections with a score above 0.05 that is also found in
float16: of the same class, with an IoU of at least 0.9 and a score within 0.02. Its float32 is exact here;
TF32, which torch lets cuDNN use by default, has a column of its own. The model returns at most 100
detections: where it finds more, the last digits of a score decide which is the hundredth, and this counts.

The network was trained here for {training:g} seconds to find drawn shapes (`tests/models/shapes.py`). The
images are of such shapes, with as many in each as the first column says; nothing is downloaded."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, training=360)
    options = parser.parse_args()
    note, model, target = begin(options)
    ours = built(prepared(model, 1, target), target)
    note("compiled")
    text = [environment(target), "", TEXT.format(training=options.training), "", table(model, ours)]
    common.publish("detection_accuracy", "What Mask R-CNN finds in float16", "\n".join(text))


def table(model, ours):
    """A table of how much of what torchvision finds in float32 is found."""
    rows, every = [], []
    for count in COUNTS:
        images = [compared(model, ours, count, seed) for seed in range(IMAGES)]
        every += images
        rows.append(row(f"{count}", images))
        print(rows[-1], flush=True)
    rows.append(row("all", every))
    header = ["shapes", "images", "found, in each", "ours", "torch, TF32", "torch, autocast"]
    return common.markdown_table(header, rows)


def row(name, images):
    """A row: the shares of all that is found in some images."""
    seen = [each[0] for each in images]
    shares = [sum(each[at] * each[0] for each in images) / sum(seen) for at in (1, 2, 3)]
    found = f"{sum(seen):,}, {min(seen)} to {max(seen)}"
    return [name, f"{len(images)}", found, *map("{:.4f}".format, shares)]


def compared(model, ours, count, seed):
    """How many detections torchvision finds in an image, and the share that each finds at lower precision."""
    image, _ = drawn(*SIZE, count, 50 + seed, "cuda")
    with torch.no_grad():
        with common.float32_convolutions():
            exact = arrays(model([image])[0])
        as_it_comes = arrays(model([image])[0])
        with torch.autocast("cuda"):
            half = arrays(model([image])[0])
    seen = int((exact["scores"] > 0.05).sum())
    return seen, *(share_matched(each, exact) for each in (arrays(ours(image)), as_it_comes, half))


def arrays(found):
    return {name: value.float().cpu().numpy() for name, value in found.items() if name != "masks"}


if __name__ == "__main__":
    main()
