"""What `torch.export` quantizes (PT2E) computes what it does in torch, to the bit, and comes to int8."""

import numpy as np
import pytest
import torch
from torch import nn

import tvm_passes
from frontends import from_pytorch
from frontends.errors import ImportFailure
from tests.helpers import apply, ops, run
from tvm_passes.analysis.constants import with_weights
from tvm_passes.quantize import calibration_of

pytest.importorskip("torch.ao.quantization.fx._decomposed")
QUANTIZED = torch.ops.quantized_decomposed
NUMBERS = torch.randn((2, 3, 4, 6), generator=torch.Generator().manual_seed(0)) * 3
# Among them halves of a step, which go to the even one, and what is beyond the ends.
NUMBERS[0, 0, 0] = torch.tensor([0.25, 0.75, -0.25, -0.75, 1000.0, -1000.0])
SCALES = torch.tensor([0.5, 0.0123, 0.07])
POINTS = torch.tensor([3, -5, 0])


class Function(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.register_buffer("scale", torch.tensor([0.0123], dtype=torch.float64))
        self.register_buffer("zero", torch.tensor([7]))
        self.register_buffer("scales", SCALES)
        self.register_buffer("zeros", POINTS)

    def forward(self, x):
        return self.compute(self, x)


def found(model, *inputs):
    mod, params = from_pytorch(model, inputs)
    result = tvm_passes.runtime.compile(mod, "llvm", params=params)(*[each.numpy() for each in inputs])
    return [np.asarray(each) for each in (result.values() if isinstance(result, dict) else [result])]


def assert_equal_to_torch(model, *inputs, rtol=0.0):
    expected = model(*inputs)
    for each, one in zip(found(model, *inputs), expected if isinstance(expected, tuple) else (expected,)):
        assert each.dtype == one.numpy().dtype
        np.testing.assert_allclose(each, one.numpy(), rtol=rtol)


def both(quantize, dequantize, *parameters):
    """Quantized, and dequantized again."""

    def compute(_, x):
        steps = quantize(x, *parameters)
        return steps, dequantize(steps, *parameters)

    return compute


def by_tensors(model, x):
    given = model.scale, model.zero, -128, 127, torch.int8
    steps = QUANTIZED.quantize_per_tensor.tensor(x, *given)
    return steps, QUANTIZED.dequantize_per_tensor.tensor(steps, *given)


def with_limits_as_tensors(model, x):
    given = model.scale, model.zero, torch.tensor(-100), torch.tensor(90), torch.int8
    steps = QUANTIZED.quantize_per_tensor.tensor2(x, *given)
    return steps, QUANTIZED.dequantize_per_tensor.tensor2(steps, *given)


def by_channels(model, x):
    given = model.scales, model.zeros, 1, -127, 127, torch.int8
    steps = QUANTIZED.quantize_per_channel(x, *given)
    return steps, QUANTIZED.dequantize_per_channel(steps, *given)


def by_channels_without_points(model, x):
    steps = QUANTIZED.quantize_per_channel(x, model.scales, model.zeros, 1, -128, 127, torch.int8)
    return QUANTIZED.dequantize_per_channel(steps, model.scales, None, 1, -128, 127, torch.int8)


def chosen(choose, dtype, limits, eps=1e-6):
    def compute(_, x):
        scale, zero = choose(x, *limits, eps, dtype)
        steps = QUANTIZED.quantize_per_tensor.tensor(x, scale, zero, *limits, dtype)
        again = QUANTIZED.dequantize_per_tensor.tensor(steps, scale, zero, *limits, dtype)
        return scale, zero, steps, again

    return compute


def of_tokens(choose):
    def compute(_, x):
        scale, zero = choose(x, torch.int8)
        steps = QUANTIZED.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return steps, QUANTIZED.dequantize_per_token(steps, scale, zero, -128, 127, torch.int8, torch.float32)

    return compute


def of_groups(_, x):
    steps = torch.arange(-72, 72).reshape(24, 6).to(torch.int8)
    scales = x.reshape(24, 3, 2)[:, :, 0].contiguous()
    return QUANTIZED.dequantize_per_channel_group(steps, scales, None, -8, 7, torch.int8, 2, torch.float32)


PER_TENSOR = QUANTIZED.quantize_per_tensor, QUANTIZED.dequantize_per_tensor
FUNCTIONS = {
    "int8": both(*PER_TENSOR, 0.5, 3, -128, 127, torch.int8),
    "uint8": both(*PER_TENSOR, 0.0123, 130, 0, 255, torch.uint8),
    "seven bits": both(*PER_TENSOR, 0.03, 60, 0, 127, torch.uint8),
    "int16": both(*PER_TENSOR, 0.0003, -20, -32768, 32767, torch.int16),
    "tensors": by_tensors,
    "limits as tensors": with_limits_as_tensors,
    "channels": by_channels,
    "channels without points": by_channels_without_points,
    "chosen": chosen(QUANTIZED.choose_qparams.tensor, torch.uint8, (0, 255)),
    "chosen, with another eps": chosen(QUANTIZED.choose_qparams.tensor, torch.int8, (-128, 127), 9.0),
    "chosen, of int8": chosen(QUANTIZED.choose_qparams_symmetric.tensor, torch.int8, (-127, 127)),
    "chosen, of uint8": chosen(QUANTIZED.choose_qparams_symmetric.tensor, torch.uint8, (0, 255)),
    "tokens": of_tokens(QUANTIZED.choose_qparams_per_token),
    "tokens, with points": of_tokens(QUANTIZED.choose_qparams_per_token_asymmetric),
    "groups": of_groups,
    "in float16": lambda _, x: QUANTIZED.dequantize_per_tensor(
        QUANTIZED.quantize_per_tensor(x.half(), 0.013, 5, -128, 127, torch.int8),
        *(0.013, 5, -128, 127, torch.int8),
        out_dtype=torch.float16,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator(name):
    # TVM multiplies by the inverse of the number by which the scale of a token is divided.
    rtol = 1e-6 if "tokens" in name else 0.0
    assert_equal_to_torch(Function(FUNCTIONS[name]).eval(), NUMBERS, rtol=rtol)


def test_a_bias_of_int32_is_dequantized():
    given = 1e-4, 0, -(2**31), 2**31 - 1, torch.int32
    bias = (NUMBERS * 1e7).int()
    assert_equal_to_torch(Function(lambda _, x: QUANTIZED.dequantize_per_tensor(x, *given)).eval(), bias)


def test_quantizing_to_int32_is_refused():
    given = 1e-4, 0, -(2**31), 2**31 - 1, torch.int32
    with pytest.raises(ImportFailure, match="int32 is not supported: quantize tensors to int8"):
        from_pytorch(Function(lambda _, x: QUANTIZED.quantize_per_tensor(x, *given)).eval(), NUMBERS)


# --- networks


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(torch.relu(self.second(x) + x), 2)
        return self.last(x.mean((2, 3)))


def quantized(fold_quantize=True, is_dynamic=False):
    pytest.importorskip("torch.ao.quantization.quantizer.xnnpack_quantizer")
    from torch.ao.quantization import quantize_pt2e
    from torch.ao.quantization.quantizer import xnnpack_quantizer

    torch.manual_seed(0)
    image = torch.rand(1, 3, 16, 16)
    try:
        from torch._export import capture_pre_autograd_graph as exported
    except ImportError:  # torch 2.5 and newer

        def exported(model, inputs):
            return torch.export.export_for_training(model, inputs).module()

    quantizer = xnnpack_quantizer.XNNPACKQuantizer()
    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    prepared = quantize_pt2e.prepare_pt2e(exported(Network().eval(), (image,)), quantizer.set_global(config))
    prepared(image)
    return quantize_pt2e.convert_pt2e(prepared, fold_quantize=fold_quantize), image


def in_float(mod):
    return set(ops(apply(tvm_passes.FloatFromQDQ(), mod)[0]))


@pytest.mark.filterwarnings("ignore")
def test_a_network():
    model, image = quantized()
    mod = with_weights(*from_pytorch(model, image))
    np.testing.assert_allclose(run(mod, image.numpy())[0], model(image).detach().numpy(), atol=1e-6)
    calibration = calibration_of(mod, tvm_passes.detection_pipeline("cuda -arch=sm_90", "int8"))
    assert [each.in_float for each in calibration.convolutions.values()] == [True, False, False]
    assert {each.data for each in calibration.convolutions.values()} < {*bounds(model)}


def bounds(model):
    """Those of tensors, as the model's own operators have them."""
    for node in model.graph.nodes:
        if node.target is QUANTIZED.quantize_per_tensor.default:
            _, scale, zero, low, high, _ = node.args
            yield max((high - zero) * scale, (zero - low) * scale * 127 / 128)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_the_network_itself_quantizes_become_constants():
    model, image = quantized(fold_quantize=False)
    names = in_float(with_weights(*from_pytorch(model, image)))
    assert not {"reinterpret", "qnn.dequantize", "divide"} & names and "clip" in names


@pytest.mark.filterwarnings("ignore")
def test_a_network_whose_scales_are_known_at_run_time():
    model, image = quantized(is_dynamic=True)
    np.testing.assert_allclose(found(model, image)[0], model(image).detach().numpy(), atol=1e-6)
