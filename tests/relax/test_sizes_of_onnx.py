"""ONNX models in Relax whose batch, or whose images' size, only the run knows, beside ONNX Runtime."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.vision_transformer import VisionTransformer

import frontends.relax
from frontends.relax import ImportFailure
from frontends.relax._onnx.sizes import Size, SizeUnknown, bounded, broadcast
from tests.relax.modules import QUICK, Of, compiled, run
from tests.relax.onnx_models import FLOAT, INT64, exported, in_onnxruntime, of_graph
from tvm_passes.relax import convolution_pipeline

from tvm import tirx

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of the exporter

BATCH = {"input.0": {0: "batch"}}
IMAGES = {"input.0": {0: "batch", 2: "height", 3: "width"}}
CONVOLUTION = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)


def imported(function, shape, axes, **options):
    model = function if isinstance(function, nn.Module) else Of(function)
    torch.manual_seed(0)
    model, _ = exported(model.eval(), torch.rand(shape), dynamic_axes=axes, **options)
    return model, frontends.relax.from_onnx(model)


def assert_as_in_onnxruntime(model, mod, *shapes):
    executable = compiled(mod, QUICK)
    for shape in shapes:
        array = np.random.default_rng(0).random(shape, "float32")
        (expected,) = in_onnxruntime(model, {"input.0": array}).values()
        (found,) = run(executable, [array])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def shuffled(x):
    """Channels, as ShuffleNet does, by the shape of the images."""
    batch, _, height, width = x.shape
    x = F.pixel_unshuffle(CONVOLUTION(x), 2)
    return x.view(batch, 2, 8, height // 2, width // 2).transpose(1, 2).flatten(1, 2)


def joined(x):
    """A token for each image, and positions of a known number."""
    token = torch.ones(1, 1, 4).expand(x.shape[0], -1, -1)
    tokens = torch.cat([token, CONVOLUTION(x).flatten(2).transpose(1, 2)], 1)
    zeros = torch.zeros(x.shape[0], tokens.shape[1], 4).repeat(1, 1, 1)
    return tokens[:, 1:] + zeros[:, :-1], tokens[:, 0]


BATCHES = {
    "classifier": lambda: (
        nn.Sequential(
            *(CONVOLUTION, nn.BatchNorm2d(4), nn.ReLU6(), InvertedResidual(4, 4, 1, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
        ),
        (2, 3, 8, 10),
    ),
    "transformer": lambda: (VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5), (2, 3, 16, 16)),
    "shuffled": lambda: (shuffled, (2, 3, 4, 6)),
    "resized": lambda: (lambda x: F.interpolate(x, size=(9, 5), mode="bicubic")[:, :, 1:-1], (2, 3, 4, 6)),
    "pooled": lambda: (lambda x: F.adaptive_avg_pool2d(CONVOLUTION(x), 1).flatten(1), (2, 3, 4, 6)),
    "joined": lambda: (lambda x: torch.cat([each.flatten(1) for each in joined(x)], 1), (2, 3, 4, 6)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_of_any_batch(name):
    function, shape = BATCHES[name]()
    model, mod = imported(function, shape, BATCH)
    mod = convolution_pipeline(QUICK)(mod)
    assert_as_in_onnxruntime(model, mod, *((count, *shape[1:]) for count in (1, 2, 3)))


def upsampled(x):
    low = F.interpolate(F.relu(CONVOLUTION(x)), scale_factor=2, mode="nearest")
    return F.interpolate(low, scale_factor=3.0, mode="bilinear") + low.mean((2, 3), keepdim=True)


SIZES = {
    "convolved": nn.Sequential(CONVOLUTION, nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 8, 3), nn.PixelShuffle(2)),
    "upsampled": upsampled,
    "resized as given": lambda x: F.interpolate(x[:, :, ::2, ::2], x.shape[2:], mode="bilinear"),
    "normalized": lambda x: F.instance_norm(CONVOLUTION(x)),
}


@pytest.mark.parametrize("name", SIZES)
def test_of_any_size(name):
    model, mod = imported(SIZES[name], (2, 3, 8, 10), IMAGES)
    assert_as_in_onnxruntime(model, mod, (1, 3, 8, 10), (3, 3, 11, 6))


REFUSED = {
    "halves joined": (
        lambda x: torch.cat([x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)], 1),
        "Concat",
    ),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), "Resize"),
    "mirrored": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "Pad"),
    "halves of blocks": (lambda x: F.pixel_unshuffle(x, 2), "whether"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_right_for_some_sizes_only_is_refused(name):
    function, what = REFUSED[name]
    with pytest.raises(ImportFailure, match=f"{what}.*: give the sizes of the inputs by shapes"):
        imported(function, (2, 3, 8, 10), IMAGES)


def test_sizes_may_be_given():
    model, _ = exported(Of(lambda x: F.pixel_unshuffle(x, 2)), torch.rand(2, 3, 8, 10), dynamic_axes=IMAGES)
    mod = frontends.relax.from_onnx(model, shapes={"input.0": (None, 3, 4, 6)})
    assert_as_in_onnxruntime(model, mod, (1, 3, 4, 6), (3, 3, 4, 6))


def test_inputs_whose_sizes_have_one_name_have_one_size():
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"])]
    inputs = [("x", FLOAT, ["N", 3]), ("y", FLOAT, ["N", 3])]
    mod = frontends.relax.from_onnx(of_graph(nodes, inputs, [("sum", FLOAT, ["N", 3])]))
    one, other = (parameter.ty.shape[0] for parameter in mod["main"].params)
    assert isinstance(one, tirx.Var) and one.same_as(other)


def test_a_size_as_a_result():
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    model = of_graph(nodes, [("x", FLOAT, ["N", 3])], [("shape", INT64, [2])])
    with pytest.raises(ImportFailure, match="the output 'shape' is a size that only the run knows"):
        frontends.relax.from_onnx(model)


def test_comparisons_with_one_answer():
    n, h = (Size(tirx.Var(name, "int64")) for name in "nh")
    assert n * h * 6 // (n * 3) == h * 2 and n != 0 and n + 1 > 1 and n - 2 != n
    assert broadcast((n, 1, 3), (1, h, 3)) == (n, h, 3)
    assert bounded(slice(0, 2**63 - 1, 2), n) == (0, n, 2) and bounded(slice(-1, n, 1), n)[0] == n - 1
    for undecided in (lambda: n == 1, lambda: n > 2, lambda: n == h, lambda: broadcast((n,), (1, h))):
        with pytest.raises(SizeUnknown, match="is known only as it runs"):
            undecided()
    for known in (lambda: int(n), lambda: np.zeros(n), lambda: range(n)):
        with pytest.raises(SizeUnknown, match="it needs a size that only the run knows, n"):
            known()
