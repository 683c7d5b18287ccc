"""Depth-to-space in Relax: a part of the convolution before it, or a kernel of its own."""

import numpy as np
import pytest
import torch
from torch import nn

import frontends.relax
import topi_ext
from tests.models.super_resolution import channels_of, super_resolution_model
from tests.relax.emulated_cuda import emulate_cuda
from tests.relax.modules import CUDA, QUICK, compiled, run
from tests.relax.test_passes import CONVOLUTION, calls, converted, convolution, of_images, operators
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.relax import convolution_pipeline

import tvm
from tvm import relax

NETWORKS = {
    # With what options, and the blocks of its convolutions.
    "edsr_x2": ({"channels": 8, "blocks": 1, "res_scale": 0.1}, [1, 1, 1, 1, 2, 1]),
    "edsr_x4": ({"channels": 8, "blocks": 1, "prelu": True, "clamp": True}, [1, 1, 1, 1, 2, 2, 1]),
    "thread": ({"channels": 16}, [1, 1, 1, 1, 1, 2, 2, 1]),
    "espcn": ({}, [1, 1, 3]),
}
SEEDED = torch.Generator().manual_seed(5)
PIXELS = relax.TensorType((2, 5, 6, 4), "float32")


def imported(model, image):
    with torch.no_grad():
        expected = model(image).numpy()
    return frontends.relax.from_pytorch(model, image), expected


def blocks(module):
    return [int(call.attrs["block_size"]) for call in calls(module)]


def assert_computes(module, image, expected):
    (found,) = run(compiled(module, QUICK), [image.numpy()])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_convolutions_without_transposes_in_between(name):
    options, wanted = NETWORKS[name]
    model = super_resolution_model(name, **options)
    image = torch.rand(1, channels_of(name), 5, 6, generator=SEEDED)
    module, expected = imported(model, image)
    result, refused = converted(module)
    kernels = ["relax.permute_dims", *[CONVOLUTION] * len(wanted), "relax.permute_dims"]
    assert operators(result) == kernels and blocks(result) == wanted and not refused
    tvm.ir.assert_structural_equal(converted(result)[0], result)
    assert_computes(result, image, expected)
    in_half = convolution_pipeline(CUDA)(module)
    assert [each for each in operators(in_half) if each != "relax.astype"] == kernels


class Around(nn.Module):
    """Two convolutions, and between them what is given."""

    def __init__(self, between, filters, channels):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, filters, 3, 1, 1), nn.Conv2d(channels, 2, 1)
        self.prelu, self.between = nn.PReLU(channels), between
        self.slope = nn.Parameter(torch.tensor([0.2]))
        self.register_buffer("scale", torch.arange(1.0, channels + 1).reshape(-1, 1, 1))
        nn.init.uniform_(self.prelu.weight)

    def forward(self, x):
        return self.last(self.between(self, self.first(x)))


def slabs(x, block=2):
    """A depth-to-space in the order DCR."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, block, block, channels // block**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(batch, -1, height * block, width * block)


shuffle = nn.functional.pixel_shuffle
BETWEEN = {
    "order DCR": lambda m, x: slabs(x).relu(),
    "activated before": lambda m, x: shuffle(nn.functional.silu(x), 2),
    "computed behind": lambda m, x: nn.functional.hardswish(shuffle(x, 2) * m.scale - m.scale),
    "prelu behind": lambda m, x: m.prelu(shuffle(x, 2)),
    "one slope before": lambda m, x: shuffle(nn.functional.prelu(x, m.slope), 2).sigmoid(),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_done_to_each_result_is_a_part_of_the_convolution(name):
    torch.manual_seed(3)
    image = torch.rand(2, 3, 5, 6)
    module, expected = imported(Around(BETWEEN[name], 12, 3).eval(), image)
    result, _ = converted(module)
    assert operators(result) == ["relax.permute_dims", *[CONVOLUTION] * 2, "relax.permute_dims"]
    assert blocks(result) == [2, 1]
    assert_computes(result, image, expected)


def used_twice(m, x):
    split = x.reshape(2, 3, 2, 2, 5, 6)
    return split.permute(0, 1, 4, 2, 5, 3).reshape(2, 3, 10, 12) + split.sum()


LEFT = {
    "a residual is added before the shuffle": (
        lambda m, x: shuffle(x + m.first(m.image) * m.image.sum(), 2),
        12,
        3,
    ),
    "the transposed, split or moved tensor has other users": (used_twice, 12, 3),
    "the convolution shuffles already": (lambda m, x: shuffle(shuffle(x, 2), 2), 16, 1),
    "the block of 2x3 is not square": (
        lambda m, x: x.reshape(2, 2, 2, 3, 5, 6).permute(0, 1, 4, 2, 5, 3).reshape(2, 2, 10, 18),
        12,
        2,
    ),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_the_operator_does_not_shuffle_is_refused(reason):
    torch.manual_seed(3)
    image = torch.rand(2, 3, 5, 6)
    model = Around(*LEFT[reason]).eval()
    model.image = image
    module, expected = imported(model, image)
    result, refused = converted(module)
    assert reason in refused and "relax.reshape" in operators(result)
    assert_computes(result, image, expected)


def test_weights_that_are_not_known_are_not_reordered():
    def build(x, weight):
        y = relax.op.permute_dims(topi_ext.conv2d_nhwc(x, weight), [0, 3, 1, 2])
        return relax.op.nn.pixel_shuffle(y, 2)

    result, refused = converted(of_images(build, PIXELS, relax.TensorType((8, 1, 1, 4), "float32")))
    assert blocks(result) == [1]
    assert refused == {"the weights or the bias of the convolution are not constant"}


def test_filters_in_groups_are_not_reordered():
    def build(x):
        weight = relax.const(np.ones((8, 1, 1, 2), "float32"))
        y = relax.op.permute_dims(topi_ext.conv2d_nhwc(x, weight, groups=2), [0, 3, 1, 2])
        return relax.op.nn.pixel_shuffle(y, 2)

    result, refused = converted(of_images(build, PIXELS))
    assert blocks(result) == [1] and refused == {"the filters are in groups"}


def test_the_operator_of_relax_is_a_part_of_a_convolution_too():
    def build(x):
        return relax.op.nn.pixel_shuffle(relax.op.permute_dims(convolution(x), [0, 3, 1, 2]), 2)

    result, _ = converted(of_images(build))
    assert operators(result) == [CONVOLUTION, "relax.permute_dims"]
    assert blocks(result) == [2]


ONEDNN = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "libs": ["onednn"]})


def spelled_out(x, block=2):
    """In the order DCR."""
    n, c, h, w = relax.BlockBuilder.current().normalize(x).ty.shape.values
    x = relax.op.reshape(x, (n, block, block, int(c) // block**2, h, w))
    x = relax.op.permute_dims(x, [0, 3, 4, 1, 5, 2])
    return relax.op.reshape(x, (n, int(c) // block**2, h * block, block * w))


@pytest.mark.parametrize(
    "shape, target",
    [(("n", 3, 5, 6), QUICK)] + [(("n", 3, "h", "w"), ONEDNN)] * onednn.is_available(),
    ids=["batch", "size"][: 1 + onednn.is_available()],
)
@pytest.mark.parametrize("shuffled", [spelled_out, lambda x: relax.op.nn.pixel_shuffle(x, 2)])
def test_batches_and_sizes_may_be_known_only_at_run_time(shuffled, shape, target):
    shapes = (12, 3, 3, 3), (8, 3, 1, 1), (2, 2, 1, 1)
    first, second, last = (relax.const(np.random.default_rng(1).random(each, "float32")) for each in shapes)

    def build(x):
        y = shuffled(relax.op.nn.conv2d(x, first, padding=1))
        y = relax.op.nn.relu(shuffled(relax.op.nn.conv2d(y, second)))
        return relax.op.nn.conv2d(y, last)

    lengths = {name: tvm.tirx.Var(name, "int64") for name in "nhw"}
    module = of_images(build, relax.TensorType([lengths.get(each, each) for each in shape], "float32"))
    module = relax.transform.ConvertToDataflow()(module)  # as importers do, for TVM's ConvertLayout
    result, refused = converted(module, target)
    assert operators(result) == ["relax.permute_dims", *[CONVOLUTION] * 3, "relax.permute_dims"]
    assert blocks(result) == [2, 2, 1] and not refused
    mine, theirs = compiled(result, target), compiled(module, QUICK)
    for batch, height, width in ((1, 5, 6), (3, 4, 7)):
        given = {"n": batch, "h": height, "w": width}
        image = np.random.default_rng(2).random([given.get(each, each) for each in shape], "float32")
        np.testing.assert_allclose(run(mine, [image])[0], run(theirs, [image])[0], rtol=1e-4)


def test_lengths_that_may_differ_are_no_shuffle():
    """The batch of what is split is the height of the images."""
    n, h = (tvm.tirx.Var(name, "int64") for name in "nh")

    def build(x):
        y = convolution(x, padding=1)
        split = relax.op.permute_dims(relax.op.reshape(y, (h, n, 5, 2, 2, 1)), [0, 1, 3, 2, 4, 5])
        return relax.op.reshape(split, (h, n * 2, 10, 1))

    result, _ = converted(of_images(build, relax.TensorType((n, h, 5, 3), "float32")), ONEDNN)
    assert "relax.reshape" in operators(result)


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("target", [QUICK, CUDA])
def test_the_operator_of_relax_has_a_kernel(target, batch):
    batch = tvm.tirx.Var(batch, "int64") if batch == "n" else batch
    planes = relax.TensorType((batch, 12, 5, 6), "float32")
    module = of_images(lambda x: relax.op.nn.pixel_shuffle(x, 2), planes)
    x = torch.rand(2, 12, 5, 6)
    if target is QUICK:
        (found,) = run(compiled(module, QUICK), [x.numpy()])
    else:
        with emulate_cuda():
            (found,) = run(compiled(module, CUDA), [x.numpy()], device=tvm.cuda())
    np.testing.assert_array_equal(found, nn.functional.pixel_shuffle(x, 2))
