"""Modules of torch whose batch, or whose images' size, only the run knows, beside what torch computes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torchvision.models.vision_transformer import VisionTransformer

import frontends.relax
from frontends.relax import ImportFailure
from tests.relax.detectors import detector
from tests.relax.modules import QUICK
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline

CONVOLUTION = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)
IMAGES = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
BATCH = {0: Dim("batch")}


class Of(nn.Module):
    """A function of images, by whose name torch knows their sizes."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def imported(function, shape, sizes):
    torch.manual_seed(0)
    model = Of(function).eval()
    return model, frontends.relax.from_pytorch(model, torch.rand(shape), dynamic_shapes=(sizes,))


def assert_as_in_torch(model, mod, *shapes):
    network = runtime.compile(convolution_pipeline(QUICK)(mod), QUICK)
    for shape in shapes:
        x = torch.rand(shape)
        with torch.no_grad():
            np.testing.assert_allclose(network(x), model(x), rtol=1e-4, atol=1e-5)
    return network


def with_a_token(x):
    token = torch.ones(1, 1, 4).expand(x.shape[0], -1, -1)
    return torch.cat([token, CONVOLUTION(x).flatten(2).transpose(1, 2)], 1)[:, :-1]


def written(x):
    result = F.pad(torch.zeros_like(x), (1, 1, 1, 1))
    result[:, :, 1:-1, 1:-1] = x * 2
    result[:, 1, -1] = 7.0
    return result


def test_of_any_batch():
    torch.manual_seed(0)
    of_tokens = VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5).eval()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()

    def of_all(x):
        return torch.cat([of_tokens(x), head(CONVOLUTION(x)), with_a_token(x).flatten(1)], 1)

    model, mod = imported(of_all, (2, 3, 16, 16), BATCH)
    assert_as_in_torch(model, mod, *((count, 3, 16, 16) for count in (1, 2, 3)))


SIZES = {
    "written": written,
    "turned around": lambda x: x.flip(3) + x[:, :, -1:] * x.shape[2] + x.shape[3] / x.shape[2],
    "upsampled": lambda x: F.interpolate(F.relu(CONVOLUTION(x)), scale_factor=1.5, mode="bilinear"),
    "resized to an image": lambda x: x + F.interpolate(F.max_pool2d(x, 3, 2, 1), size=x.shape[2:]),
    "normalized": lambda x: F.group_norm(CONVOLUTION(x), 2) + F.instance_norm(x).mean(1, keepdim=True),
    "pooled to three": lambda x: F.adaptive_avg_pool2d(x, 3),
    "cropped": lambda x: CONVOLUTION(x)[:, :, ::2, : x.shape[3]],
}


@pytest.mark.parametrize("name", SIZES)
def test_of_any_size(name):
    model, mod = imported(SIZES[name], (2, 3, 8, 10), IMAGES)
    assert_as_in_torch(model, mod, (1, 3, 8, 10), (3, 3, 11, 6))


def joined(x):
    return torch.cat([x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)], 1)


SOME = {  # what is joined is right for even sizes, as torch finds, or is told
    "found": (IMAGES, (1, 3, 9, 10), "x_2 must be a multiple of 2, and is 9"),
    "told": ({2: 2 * Dim("rows"), 3: 2 * Dim("columns")}, (2, 3, 8, 7), "x_3 must be a multiple of 2"),
    "at least": ({3: Dim("w", min=8)}, (2, 3, 8, 6), "x_3 must be at least 8, and is 6"),
    "at most": ({3: Dim("w", max=12)}, (2, 3, 8, 14), "x_3 must be at most 12, and is 14"),
}


@pytest.mark.parametrize("name", SOME)
def test_of_some_sizes_and_no_others(name):
    sizes, shape, reason = SOME[name]
    model, mod = imported(joined if name in ("found", "told") else CONVOLUTION, (2, 3, 8, 10), sizes)
    network = assert_as_in_torch(model, mod, (2, 3, 8, 10), (2, 3, 8, 12))
    with pytest.raises(ValueError, match=f"does not take inputs of these sizes: {reason}"):
        network(torch.zeros(shape))


REFUSED = {
    "places": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        r"equivalent of .*max_pool2d",
    ),
    "a known size": (
        lambda x: x + torch.ones(10),
        "torch cannot export Of: .* specialized it to be a constant .10.",
    ),
    "a condition": (lambda x: x.reshape(x.shape[0], -1, 60), "right only for sizes|torch cannot export"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_size_is_refused(name):
    function, reason = REFUSED[name]
    with pytest.raises(ImportFailure, match=reason):
        imported(function, (2, 3, 8, 10), IMAGES)


def test_torch_is_told_of_even_sizes_or_compares_them():
    with pytest.raises(ImportFailure, match=r"% 2.* == 0.*Dim.DYNAMIC are compared as the network runs"):
        imported(joined, (2, 3, 8, 10), {2: Dim("height"), 3: Dim("width")})


def test_detectors_have_one_size():
    with pytest.raises(ImportFailure, match="one size of images: leave out dynamic_shapes"):
        frontends.relax.from_pytorch(
            detector("fcos"), torch.rand(3, 64, 64), dynamic_shapes=({1: Dim.DYNAMIC},)
        )
