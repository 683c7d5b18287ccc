"""Networks that PyTorch has quantised compute what they do there, to the step."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.nn import quantized as nnq
from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx
from torch.nn import functional as F

import topi_ext
import tvm_passes
from frontends import from_pytorch
from frontends.errors import ImportFailure
from tests.helpers import run

import tvm
from tvm import relay

IMAGES = torch.rand((4, 1, 3, 12, 10), generator=torch.Generator().manual_seed(0))


class Quantised(nn.Module):
    """A convolution, and an operator behind it."""

    def __init__(self, behind):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.behind = behind

    def forward(self, x):
        return self.behind(self.conv(x))


class Square(nn.Module):
    def forward(self, x):
        return x * x


def quantised(behind):
    torch.manual_seed(0)
    prepared = quantize_fx.prepare_fx(
        Quantised(behind).eval(), get_default_qconfig_mapping("fbgemm"), (IMAGES[0],)
    )
    for image in IMAGES:
        prepared(image)
    return quantize_fx.convert_fx(copy.deepcopy(prepared))


BEHIND = {
    "nothing": nn.Identity(),
    "average": nn.AvgPool2d(3, 2),
    "average of a padded image": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average of all": nn.AdaptiveAvgPool2d(1),
    "average of parts": nn.AdaptiveAvgPool2d((3, 2)),
    "mean": lambda x: x.mean((2, 3)),
    "mean of all": torch.mean,
    "largest": nn.MaxPool2d(2),
    "nearest, by scale": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "nearest, by size": lambda x: F.interpolate(x, size=(15, 21), mode="nearest"),
    "linear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "relu": lambda x: torch.relu(x[:, ::2]),
    "sigmoid": torch.sigmoid,
    "hyperbolic tangent": torch.tanh,
    "relu6": nn.ReLU6(),
    "relu6 in place": lambda x: F.relu6(x, inplace=True) + x,
    "bounds": lambda x: x.clamp(-0.1, 0.2),
    "between": nn.Hardtanh(-0.2, 0.1),
    "number": lambda x: (x + 0.25) * 1.5,
    "products": lambda x: torch.matmul(x, x.transpose(2, 3)),
    "softmax": nn.Softmax(1),
    "layers": nn.LayerNorm([10, 8]),
    "instances": nn.InstanceNorm2d(8, affine=True),
    "batch, behind a product": nn.Sequential(Square(), nn.BatchNorm2d(8), nn.ReLU()),
    "elu": nn.ELU(0.5),
    "joined": lambda x: torch.cat([x[:, :3], x[:, 5:]], 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BEHIND)
def test_an_operator_of_quantised_numbers(name):
    model = quantised(BEHIND[name])
    mod, params = from_pytorch(model, IMAGES[0])
    found = np.asarray(tvm_passes.runtime.compile(mod, "llvm", params=params)(IMAGES[0].numpy()))
    expected = model(IMAGES[0]).numpy()
    step = float(model.conv.scale)
    np.testing.assert_allclose(found, expected, atol=1.01 * step)
    assert abs((found - expected).mean()) < step / 4  # not all cut


class QuantisedCelu(nn.Module):
    def forward(self, x):
        return nnq.functional.celu(x, 0.02, 100, 0.5)


@pytest.mark.filterwarnings("ignore")
def test_celu_of_quantised_numbers():
    model = nn.Sequential(nnq.Quantize(0.02, 120, torch.quint8), QuantisedCelu(), nnq.DeQuantize())
    numbers = torch.linspace(-2, 2, 41)[None]
    mod, params = from_pytorch(model, numbers)
    found = np.asarray(tvm_passes.runtime.compile(mod, "llvm", params=params)(numbers.numpy()))
    np.testing.assert_allclose(found, model(numbers).numpy(), atol=0.021)


@pytest.mark.filterwarnings("ignore")
def test_bounds_of_quantised_numbers_in_a_trace_are_refused():
    traced = torch.jit.trace(quantised(nn.ReLU6()), IMAGES[0])
    with pytest.raises(ImportFailure, match=r"hardtanh.* it is of quantized tensors: pass the nn.Module"):
        from_pytorch(traced, IMAGES[0])


@pytest.mark.filterwarnings("ignore")
def test_an_average_that_counts_padding_is_refused():
    with pytest.raises(ImportFailure, match="give count_include_pad=False, or dequantize before"):
        from_pytorch(quantised(nn.AvgPool2d(3, 2, 1)), IMAGES[0])


class InSteps(nn.Module):
    """What is computed of bytes in steps of 1, of these in floats, and of the bytes themselves."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        in_steps = torch.quantize_per_tensor(x.float(), 1.0, 3, torch.quint8)
        return self.compute(in_steps).dequantize(), self.compute(in_steps.dequantize())


BY_BYTES = {
    "average": nn.AvgPool2d(2),
    "average of parts": nn.AdaptiveAvgPool2d(4),
    "mean": lambda x: x.mean(3),
    "mean of all": torch.mean,
    "linear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "linear, by size": lambda x: F.interpolate(x, size=(12, 16), mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BY_BYTES)
def test_halves_are_rounded_to_the_even_step_and_what_is_dequantized_is_not(name):
    model = InSteps(BY_BYTES[name]).eval()
    x = torch.randint(0, 200, (1, 2, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    mod, params = from_pytorch(model, x)
    found = tvm_passes.runtime.compile(mod, "llvm", params=params)(x.numpy())
    for each, expected in zip(found.values(), model(x)):
        np.testing.assert_allclose(np.asarray(each), expected.numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_bytes_beside_quantized_tensors_are_resized_as_ever():
    class Both(nn.Module):
        def forward(self, x):
            in_steps = torch.quantize_per_tensor(x.float(), 1.0, 3, torch.quint8)
            return F.interpolate(x, scale_factor=1.7, mode="bilinear"), in_steps.dequantize()

    x = torch.randint(0, 200, (1, 2, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    mod, params = from_pytorch(Both().eval(), x)
    found, _ = tvm_passes.runtime.compile(mod, "llvm", params=params)(x.numpy()).values()
    np.testing.assert_array_equal(np.asarray(found), Both()(x)[0].numpy())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6), (2, 1, 4, 6)])
def test_rows_of_any_number_of_axes(shape):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).eval()
    x = torch.randn(shape)
    prepared = quantize_fx.prepare_fx(layers, get_default_qconfig_mapping("fbgemm"), (x,))
    prepared(x)
    model = quantize_fx.convert_fx(prepared)
    mod, params = from_pytorch(model, x)
    found = np.asarray(tvm_passes.runtime.compile(mod, "llvm", params=params)(x.numpy()))
    np.testing.assert_allclose(found, model(x).numpy(), atol=1e-6)


@pytest.mark.parametrize("target", ["llvm", topi_ext.cpu_target()], ids=["llvm", "cpu_target"])
def test_products_of_int8(target):
    """Sums beyond 16 bits, and weights of int8 with a scale for each filter."""
    left, right = (torch.randint(-128, 128, sizes, dtype=torch.int8) for sizes in ((18, 64), (64, 24)))
    data, scales = torch.rand(18, 64), torch.rand(24)
    weight = right.T.contiguous()

    class Products(nn.Module):
        def forward(self, left, data):
            return torch._int_mm(left, right), torch._weight_int8pack_mm(data, weight, scales)

    mod, params = from_pytorch(Products(), (left, data))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    sums, products = run(mod, left.numpy(), data.numpy(), target=target, device=tvm.cpu())
    np.testing.assert_array_equal(sums, left.int() @ right.int())
    np.testing.assert_allclose(products, data @ weight.T.float() * scales, 1e-4, atol=1e-3)
