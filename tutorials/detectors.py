"""torchvision's detectors, a photograph for them, and comparisons of their detections with TVM's."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torchvision
from matplotlib import cbook

from tests.models.zoo import detection_model
from tvm_passes.command.draw import draw_detections, scaled
from tvm_passes.command.images import read_image

from tvm import relay

MIN_SCORE = 0.3  # detections with lower scores are not drawn


def parser(doc, short_side):
    """A parser of the arguments that all tutorials on detectors have; `doc` is the tutorial's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", metavar="FILE", help="by default, a sample photograph")
    parser.add_argument(
        "--short-side",
        type=int,
        default=short_side,
        metavar="N",
        help="length of the shorter side of the network's input, in pixels (%(default)s)",
    )
    parser.add_argument(
        "--weights",
        choices=("trained", "random"),
        default="trained",
        help="also random if torchvision cannot load trained ones (%(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("."), metavar="DIR", help="for the output files (%(default)s)"
    )
    return parser


def photograph(path=None):
    """A PIL image; by default, the portrait that comes with matplotlib."""
    return read_image(path or cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))


def as_tensor(photo, short_side):
    """An image as 3xHxW between 0 and 1, resized so that its shorter side has this length."""
    factor = short_side / min(photo.size)
    photo = photo.resize([round(side * factor) for side in photo.size])
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).contiguous() / 255


def detector(name, image, weights):
    """A detector that takes images of this size without resizing them, and the names of its classes.

    Its weights are trained if torchvision can load them; otherwise they are random, and a message says so.
    """
    height, width = image.shape[1:]
    size = {"fixed_size": (width, height)}
    build = getattr(torchvision.models.detection, name)
    trained = torchvision.models.get_model_weights(build).DEFAULT
    if weights == "trained":
        try:
            return build(weights=trained, **size).eval(), trained.meta["categories"]
        except OSError as reason:
            print(f"torchvision cannot load its trained weights: {reason}")
    print("The weights are random, fitted to the image: the detections mean nothing, but cost as much work.")
    turned = [image.flip(axes) for axes in ((), (1,), (2,), (1, 2))]
    classes = [f"class {index}" for index, _ in enumerate(trained.meta["categories"])]
    return detection_model(name, images=turned, **size), classes


def stock_import(model, image):
    """A detector as TVM's own frontend imports it, which needs a batch and a tuple of outputs."""

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.detector = model

        def forward(self, images):
            return tuple(self.detector(images)[0].values())

    with torch.no_grad():
        traced = torch.jit.trace(Flat(), image, check_trace=False)
    return relay.frontend.from_pytorch(traced, [("image", tuple(image.shape))])


def as_arrays(tensors):
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def compare(expected, found):
    """Print how many of PyTorch's detections TVM finds too, and the largest difference between them."""
    pairs = list(counterparts(expected, found))
    print(f"TVM finds {len(pairs)} of PyTorch's {len(expected['boxes'])} detections.")
    if pairs:
        off = {
            name: max(np.abs(expected[name][i] - found[name][j]).max() for i, j in pairs) for name in expected
        }
        print("They differ by", ", ".join(f"{most:.1e} in {name}" for name, most in off.items()), "at most.")


def counterparts(expected, found):
    """Index pairs of detections of the same class with similar boxes: their order may differ."""
    overlaps = torchvision.ops.box_iou(
        *(torch.from_numpy(each["boxes"]) for each in (expected, found))
    ).numpy()
    overlaps[expected["labels"][:, None] != found["labels"]] = 0
    for i, row in enumerate(overlaps):
        if row.max(initial=0) > 0.9:
            yield i, int(row.argmax())


def draw(photo, found, image, class_names, path):
    """Save the photograph with the detections from `image`, its resized copy."""
    factor = [whole / seen for whole, seen in zip(photo.size, image.shape[:0:-1])]
    draw_detections(photo, scaled(found, factor), class_names, MIN_SCORE).save(path)
    print(f"The detections are drawn in {path}.")
