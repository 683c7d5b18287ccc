"""Small detectors, and images in which it is known what they find.

A detector finds the part of an image where a color is bright: red is class 0, green 1, blue 2.
"""

import io

import numpy as np
from PIL import Image

import topi_ext  # before tvm

import tvm
from tvm import relay

SIZE = 48, 64
SIDE = 28  # of a small mask


def painted_detector(batch=1, masks=None, size=SIZE, keypoints=False):
    """A module that takes a batch of images; for several, it names outputs as those of torchvision's list."""
    images = relay.var("images", shape=(batch, 3, *size))
    outputs = {}
    for index in range(batch):
        image = relay.reshape(relay.take(images, relay.const([index]), axis=0), (3, *size))
        prefix = f"output{index}." if batch > 1 else ""
        outputs.update({f"{prefix}{name}": each for name, each in _found(image, size, masks, keypoints)})
    function = relay.Function([images], relay.Tuple(list(outputs.values())))
    return tvm.IRModule.from_expr(function.with_attr("output_names", list(outputs)))


def _found(image, size, masks, keypoints):
    height, width = size
    bright = relay.cast(image > relay.const(0.7), "float32")
    columns, rows = relay.max(bright, axis=1), relay.max(bright, axis=2)  # (3, width), (3, height)
    left, top = _first(columns), _first(rows)
    right, bottom = (
        relay.const(float(length)) - _first(relay.reverse(each, axis=1))
        for length, each in ((width, columns), (height, rows))
    )
    is_there = relay.max(columns, axis=1)
    boxes = relay.stack([left, top, left + (right - left) * is_there, bottom], axis=1)
    yield "boxes", boxes
    yield "scores", relay.mean(bright, axis=(1, 2))
    yield "labels", relay.const(np.int64([0, 1, 2]))
    if masks:
        small = relay.const(np.ones((3, 1, SIDE, SIDE), "float32"))
        if masks == "raw":
            yield "masks", small
        else:
            paste = topi_ext.encode_masks if masks == "encoded" else topi_ext.paste_masks
            yield "masks", paste(small, boxes, size)
    if keypoints:
        seen = relay.const(np.ones(3, "float32"))
        points = relay.stack(
            [(left + right) * relay.const(0.5), (top + bottom) * relay.const(0.5), seen], axis=1
        )
        yield "keypoints", relay.reshape(points, (3, 1, 3))


def _first(values):
    """Where the first 1 is in each row."""
    return relay.cast(relay.argmax(values, axis=1), "float32")


def painted(height, width, *boxes):
    """A dark image with a box of each color: (left, top, right, bottom), or None."""
    pixels = np.full((height, width, 3), 20, "uint8")
    for color, box in enumerate(boxes):
        if box is not None:
            left, top, right, bottom = box
            pixels[top:bottom, left:right, color] = 255
    return pixels


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def png(height, width, *boxes):
    """The bytes of a painted image."""
    file = io.BytesIO()
    Image.fromarray(painted(height, width, *boxes)).save(file, "PNG")
    return file.getvalue()
