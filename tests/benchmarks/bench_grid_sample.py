"""Time samples of images at grids, and homographies: `python -m tests.benchmarks.bench_grid_sample`.

The peer is torch's `grid_sample`, alone and under `torch.compile`, bilinear with zeros around the image. A
homography is imported from the same torch code that is timed, which computes the grid first; no other package
is needed. Our results are compared with torch's before anything is timed.
"""

import argparse

import torch
from torch.nn import functional

from frontends import from_pytorch
from tests.benchmarks import _common as common
from tvm_passes import default_pipeline

from tvm import relay

SHAPES = [(8, 3, 1080, 1920), (1, 64, 270, 480), (1, 256, 100, 152)]  # of the images and of the results
TOLERANCE = 1e-2  # of images from 0 to 1: places are rounded, too
SMOOTH = 16  # pixels that are averaged, so that a small error of a place is a small error of the result


class Sample(torch.nn.Module):
    """A sample at points that are given, as where an image follows a flow."""

    def forward(self, image, grid):
        return functional.grid_sample(image, grid, align_corners=False)


class Homography(torch.nn.Module):
    """A projective warp of the unit square, as geometry packages for torch spell it."""

    def __init__(self, height, width):
        super().__init__()
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        self.register_buffer("points", torch.stack([xs, ys, torch.ones_like(xs)], -1).reshape(1, -1, 3))
        self.size = height, width

    def forward(self, image, matrices):
        points = self.points.expand(len(image), -1, -1) @ matrices.transpose(1, 2)
        z = points[..., 2:]
        scale = torch.where(z.abs() > 1e-8, 1.0 / (z + 1e-8), torch.ones_like(z))
        grid = (points[..., :2] * scale).reshape(len(image), *self.size, 2)
        return functional.grid_sample(image, grid, align_corners=False)


def main(arguments=None):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["", "ours", "torch.compile", "torch", "torch / ours", "floor"]
    rows = [row(*case, bandwidth) for case in cases()]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("grid_sample", "Samples at grids, and homographies", "\n".join(text))


NOTES = """Images, float32, and results have the same size, and points are displaced by up to three pixels.
ours: the imported model after `default_pipeline()`, with the grid of a homography. floor: the time to read
the images and the grid that is given, and to write the results once, at the bandwidth of a copy."""


def cases():
    """The name, the model and the inputs of each."""
    torch.manual_seed(0)
    for shape in SHAPES:
        size, image = "x".join(map(str, shape)), smooth_image(shape)
        yield f"grid_sample, {size}", Sample(), (image, displaced(shape))
        yield f"homography, {size}", Homography(*shape[2:]), (image, homographies(shape[0]))


def smooth_image(shape):
    batch, channels, height, width = shape
    coarse = torch.rand(batch, channels, -(-height // SMOOTH) + 1, -(-width // SMOOTH) + 1)
    return functional.interpolate(coarse, (height, width), mode="bilinear").contiguous()


def displaced(shape):
    batch, _, height, width = shape
    unit = torch.eye(2, 3).repeat(batch, 1, 1)
    grid = functional.affine_grid(unit, (batch, 1, height, width), align_corners=False)
    pixels = torch.tensor([width, height])
    return grid + (torch.rand(batch, height, width, 2) - 0.5) * 12 / pixels


def homographies(batch):
    return torch.eye(3) + (torch.rand(batch, 3, 3) - 0.5) * 0.1


def row(name, model, inputs, bandwidth):
    inputs, model = [each.cuda() for each in inputs], model.eval()
    mod, params = from_pytorch(model, tuple(each.cpu() for each in inputs))
    function = default_pipeline()(mod)["main"]
    if params:
        function = relay.build_module.bind_params_by_name(function, params)
    module = common.compile_for_gpu(function, *inputs)
    module.run()
    model = model.cuda()

    def by_torch():
        with torch.inference_mode():
            return model(*inputs)

    compiled_model = torch.compile(model)

    def by_compiled():
        with torch.inference_mode():
            return compiled_model(*inputs)

    (found,), expected = common.outputs_of(module), by_torch()
    difference = (found.float() - expected.float()).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"{name}: the result differs from torch's by {difference}: nothing was timed")
    ours, theirs = common.median_ms(module.run), common.median_ms(by_torch)
    floor = (sum(each.nbytes for each in inputs) + expected.nbytes) / bandwidth * 1e3
    cells = [name, ours, common.median_ms(by_compiled), theirs, f"{theirs / ours:.2f}", floor]
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
