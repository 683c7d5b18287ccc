"""Time preprocessing, from camera image to network input: `python -m tests.benchmarks.bench_preprocess`.

The peers are torch's own operators, one by one and under `torch.compile`, and TVM's own operators, which it
fuses into one kernel. All of them resize first and then normalise, which is less work than the other order.

Our result is compared with torch's before ours is timed.
"""

import argparse

import numpy as np
import torch
from torch.nn import functional

from tests.benchmarks import _common as common
from topi_ext import preprocess

from tvm import relay

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
# height and width as given, resized and padded
HD = (1080, 1920), (750, 1333), (768, 1344)
VGA = (480, 640), (800, 1067), (800, 1088)
SSD = (1080, 1920), (320, 320), (320, 320)
CASES = [  # batch, sizes, type and layout of the image, type and layout of the result
    (1, HD, "uint8", "NHWC", "float16", "NHWC"),
    (1, HD, "uint8", "NHWC", "float16", "NCHW"),
    (1, HD, "uint8", "NHWC", "float32", "NCHW"),
    (1, HD, "float32", "NCHW", "float16", "NHWC"),
    (8, HD, "uint8", "NHWC", "float16", "NHWC"),
    (1, VGA, "uint8", "NHWC", "float16", "NHWC"),
    (1, SSD, "uint8", "NHWC", "float16", "NHWC"),
]
# torch rounds places between pixels to float32, which in noise of this size is up to 0.001
TOLERANCE = {"float32": 2e-3, "float16": 5e-3}


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["", "ours", "torch.compile", "torch", "stock TVM", "torch.compile / ours", "floor"]
    rows = [row(*case, bandwidth) for case in CASES]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("preprocess", "From a camera's image to a network's input", "\n".join(text))


NOTES = """Images of 3 channels are resized bilinearly, normalised, padded with zeros, and converted to the
type and layout of the result. For torch, NHWC is the memory format channels_last. stock TVM: its own
operators, untuned, which it fuses into one kernel. floor: the time to read the image and write the result
once, at the bandwidth of a copy; for one image, both fit in the cache of a large GPU."""


def row(batch, sizes, image_dtype, image_layout, dtype, layout, bandwidth):
    given, size, padded_size = sizes
    image = torch.from_numpy(noise(batch, given, image_dtype, image_layout)).cuda()
    variable = relay.var("image", shape=tuple(image.shape), dtype=image_dtype)
    options = {"mean": MEAN, "std": STD, "image_layout": image_layout, "layout": layout, "dtype": dtype}
    call = preprocess(variable, size, padded_size, **options)
    ours = common.compile_for_gpu(relay.Function([variable], call), image)
    stock = stock_operators(variable, size, padded_size, image_layout, dtype, layout)
    stock = common.compile_for_gpu(relay.Function([variable], stock), image)
    eager = InTorch(size, padded_size, image_layout, dtype, layout)
    torch._dynamo.reset()  # or it makes kernels for any size once it has seen a second
    compiled = torch.compile(eager, dynamic=False)
    for module in (ours, stock):
        module.run()
        (found,) = common.outputs_of(module)
        same(found, eager(image), layout, TOLERANCE[dtype])
    found = common.outputs_of(ours)[0]
    floor = sum(each.numel() * each.element_size() for each in (image, found)) / bandwidth * 1e3
    runs = [ours.run, lambda: compiled(image), lambda: eager(image), stock.run]
    times = [common.median_ms(run) for run in runs]
    name = (
        f"{batch} x {given[0]}x{given[1]} {image_layout} {image_dtype} to {padded_size[0]}x{padded_size[1]}"
    )
    cells = [f"{name} {layout} {dtype}", *times, f"{times[1] / times[0]:.1f}", floor]
    print(cells, flush=True)
    return cells


class InTorch(torch.nn.Module):
    """The same preprocessing with torch's operators."""

    def __init__(self, size, padded_size, image_layout, dtype, layout):
        super().__init__()
        self.size, self.image_layout, self.dtype = size, image_layout, getattr(torch, dtype)
        self.padding = [0, padded_size[1] - size[1], 0, padded_size[0] - size[0]]
        formats = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
        self.memory_format = formats[layout]
        self.mean, self.std = (torch.tensor(values, device="cuda")[:, None, None] for values in (MEAN, STD))

    def forward(self, image):
        planes = image.permute(0, 3, 1, 2) if self.image_layout == "NHWC" else image
        planes = functional.interpolate(planes.float(), self.size, mode="bilinear", align_corners=False)
        planes = functional.pad((planes - self.mean) / self.std, self.padding)
        return planes.to(dtype=self.dtype, memory_format=self.memory_format)


def stock_operators(image, size, padded_size, image_layout, dtype, layout):
    planes = relay.transpose(image, (0, 3, 1, 2)) if image_layout == "NHWC" else image
    planes = relay.image.resize2d(
        relay.cast(planes, "float32"),
        size,
        layout="NCHW",
        method="linear",
        coordinate_transformation_mode="half_pixel",
    )
    mean, std = (relay.const(np.array(values, "float32").reshape(1, 3, 1, 1)) for values in (MEAN, STD))
    sides = ((0, 0), (0, 0), *((0, padded - length) for length, padded in zip(size, padded_size)))
    planes = relay.nn.pad((planes - mean) / std, sides)
    planes = relay.transpose(planes, (0, 2, 3, 1)) if layout == "NHWC" else planes
    return relay.cast(planes, dtype)


def noise(batch, size, dtype, layout):
    shape = {"N": batch, "C": 3, "H": size[0], "W": size[1]}
    values = np.random.default_rng(0).integers(0, 256, [shape[axis] for axis in layout], "uint8")
    return values.astype(dtype)


def same(found, expected, layout, tolerance):
    expected = expected.permute(0, 2, 3, 1) if layout == "NHWC" else expected
    difference = (found.float() - expected.float()).abs().max().item()
    if difference > tolerance or found.shape != expected.shape:
        raise SystemExit(f"the results differ from torch's by {difference}: nothing was timed")


if __name__ == "__main__":
    main()
