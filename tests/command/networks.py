"""Networks of one operator or two, as MODEL names them: `tests.command.networks:NAME`."""

import numpy as np
import onnx
import torch
import torchvision
from onnx import TensorProto, helper
from torch import nn

import topi_ext  # before tvm

import tvm
from tvm import relay

HERE = __name__
SIZE = 24, 32


def upscaler(scale=2):
    """Of seeded weights; the shuffle is what `subpixel_pipeline` finds."""
    return nn.Sequential(nn.Conv2d(3, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale), nn.Sigmoid())


def two_layers():
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    return nn.Sequential(*layers), torch.rand(1, 3, *SIZE)


def upscaler_and_image():
    return upscaler(), torch.rand(1, 3, *SIZE)


def takes_a_number(number):
    return nn.Conv2d(3, number, 1)


net = nn.Conv2d(3, 3, 1)  # which is no function


def pair():
    return nn.Bilinear(4, 5, 2)


def pair_and_images():
    return nn.Bilinear(SIZE[1], SIZE[1], 2), (torch.rand(1, 3, *SIZE), torch.rand(1, 3, *SIZE))


def colours(dtype="float32", height=SIZE[0], width=SIZE[1]):
    """A detector in Relay: each colour of an image is found, with its mean as score, in a box of its own."""
    image = relay.var("image", shape=(1, 3, height, width), dtype=dtype)
    scores = relay.reshape(relay.mean(image, axis=(2, 3)), (3,))
    boxes = relay.const(np.float32([[2, 3, 12, 14], [6, 8, 30, 20], [0, 0, 31, 23]]))
    labels = relay.const(np.int64([0, 1, 2]))
    return _returning({"boxes": boxes, "scores": scores, "labels": labels}, image), {}


def colours_with_masks():
    """The same, each with a mask of its box."""
    mod, _ = colours()
    (image,), outputs = mod["main"].params, mod["main"].body.fields
    masks = np.random.default_rng(0).random((3, 1, 7, 7), "float32")
    pasted = topi_ext.paste_masks(relay.const(masks), outputs[0], SIZE)
    named = dict(zip(("boxes", "scores", "labels", "masks"), [*outputs, pasted]))
    return _returning(named, image), {}


def bright_pixels():
    """Where an image is brighter than 0.5: a shape that is known when it runs only."""
    image = relay.var("image", shape=(1, 3, *SIZE))
    return _returning({"where": relay.argwhere(image > relay.const(0.5))}, image), {}


def number():
    return 3


def fails():
    raise RuntimeError("the weights\nare in the other building")


def _returning(outputs, *inputs):
    body = relay.Tuple(list(outputs.values())) if len(outputs) > 1 else next(iter(outputs.values()))
    function = relay.Function(list(inputs), body).with_attr("output_names", list(outputs))
    return tvm.IRModule.from_expr(function)


def write_onnx(path, *operators, domain="", shape=(1, 3, *SIZE)):
    """A file of operators in a row, each of one input and one output of the same shape."""
    names = ["image", *(f"value{index}" for index in range(len(operators)))]
    nodes = [
        helper.make_node(operator, [source], [result], name=f"node{index}", domain=domain)
        for index, (operator, source, result) in enumerate(zip(operators, names, names[1:]))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def sums_of_bright_pixels():
    """What `MakeDetectionStatic` refuses: it computes along the axis whose length the run decides."""
    image = relay.var("image", shape=(1, 3, *SIZE))
    where = relay.argwhere(image > relay.const(0.5))
    return _returning({"sums": relay.cumsum(where, axis=0)}, image), {}


class Detector(nn.Module):
    """A convolution gives 32 boxes in 5 classes; the offset is what `torchvision.ops.batched_nms` adds."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset
        self.conv = nn.Conv2d(3, 9, 3, stride=4, padding=1)

    def forward(self, image):
        found = self.conv(image[..., :16, :32]).flatten(2)[0].T
        (scores, ids), corner = found[:, 4:].sigmoid().max(1), found[:, :2].clamp(0, 30)
        boxes = torch.cat([corner, corner + found[:, 2:4].clamp(0, 9)], 1)
        kept = torchvision.ops.nms(boxes + ids[:, None] * self.offset, scores, 0.5)
        return boxes[kept], scores[kept], ids[kept]


def detector(offset=7680.0):
    return Detector(offset), torch.rand(1, 3, *SIZE)


class FirstBrightPixels(nn.Module):
    """A slice along an axis whose length only the run knows, which `Canonicalize` refuses to make static."""

    def forward(self, image):
        return torch.nonzero(image > 0.5)[:5]


def first_bright_pixels():
    return FirstBrightPixels(), torch.rand(1, 3, *SIZE)
