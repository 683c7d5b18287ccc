"""A network that comes in float16 gets what one in float32 gets that the passes bring to float16."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import frontends
from tests.helpers import ops
from tvm_passes import runtime, subpixel_pipeline

from tvm import relay
from tvm.relay.build_module import bind_params_by_name


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.slopes = nn.PReLU(16)
        self.third = nn.Conv2d(16, 64, 1)
        self.last = nn.Conv2d(16, 8, 3, stride=2, padding=1)
        self.last_norm = nn.BatchNorm2d(8, affine=False)
        for norm in (self.norm, self.last_norm):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.slopes(self.second(x))
        x = F.pixel_shuffle(F.leaky_relu(self.third(x), 0.1), 2)
        x = F.interpolate(F.max_pool2d(x, 2), scale_factor=2)
        return F.relu6(self.last_norm(self.last(x)))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network().eval().requires_grad_(False)


def imported(model, image):
    mod, params = frontends.from_pytorch(model, image)
    mod["main"] = bind_params_by_name(mod["main"], params)
    return relay.transform.InferType()(mod)


def test_it_has_the_same_kernels(network):
    image = torch.randn(1, 8, 16, 16)
    of_float32 = imported(network, image)
    of_float16 = imported(network.half(), image.half())
    network.float()
    passes = subpixel_pipeline("cuda -arch=sm_90", dtype="float16")
    expected, found = (
        [name for name in ops(passes(mod)) if name != "cast"] for mod in (of_float32, of_float16)
    )
    assert found == expected
    assert found.count("topi_ext.conv2d_nhwc") == 4


def test_it_has_the_same_numbers(network):
    image = torch.randn(1, 8, 16, 16)
    expected = network(image).numpy()
    mod = imported(network.half(), image.half())
    network.float()
    found = runtime.compile(mod, "llvm")(image.half().numpy())
    np.testing.assert_allclose(found.astype("float32"), expected, atol=2e-2)


@pytest.mark.parametrize("variance", [1e-6, 1e-3, 1e4])
def test_a_norm_is_computed_in_float32(variance):
    """1e-6 is next to nothing in float16, and 1 / sqrt(1e-6) is not."""
    convolution, norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
    nn.init.constant_(norm.running_var, variance)
    model = nn.Sequential(convolution, norm).eval().requires_grad_(False)
    image = torch.randn(1, 3, 5, 5) * variance**0.5
    expected = model.half().float()(image.half().float()).numpy()
    found = runtime.compile(imported(model.half(), image.half()), "llvm")(image.half().numpy())
    np.testing.assert_allclose(found.astype("float32"), expected, rtol=5e-3, atol=5e-3)
