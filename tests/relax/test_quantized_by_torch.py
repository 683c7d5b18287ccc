"""What `torch.export` quantizes (PT2E) computes in Relax what it does in torch."""

import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  # which defines the operators

from tests.relax.compared_with_torch import assert_as_in_torch, random, results_of

QUANTIZED = torch.ops.quantized_decomposed
STEP, ZERO = 0.0123, 7
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)
NUMBERS, WEIGHTS = random(2, 3, 8, 9) * 2, random(4, 3, 3, 3)
# Halves of a step, which go to the even one, and what is beyond the ends.
NUMBERS[0, 0, 0, :6] = torch.tensor([0.25, 0.75, -0.25, -0.75, 1000.0, -1000.0])
SCALES, ZEROS = torch.tensor([0.5, 0.0123, 0.07]), torch.tensor([3, -5, 0])


def both(quantize, dequantize, *given):
    """Quantized, and dequantized again."""

    def compute(x, *tensors):
        steps = quantize(x, *tensors, *given)
        return steps, dequantize(steps, *tensors, *given)

    return compute


def chosen(choose, low, high, dtype):
    def compute(x):
        scale, zero = choose(x, low, high, 1e-6, dtype)
        steps = QUANTIZED.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
        return scale, zero, QUANTIZED.dequantize_per_tensor.tensor(steps, scale, zero, low, high, dtype)

    return compute


def with_limits_as_tensors(x, scale, zero, low, high):
    steps = QUANTIZED.quantize_per_tensor.tensor2(x, scale, zero, low, high, torch.int8)
    return steps, QUANTIZED.dequantize_per_tensor.tensor2(steps, scale, zero, low, high, torch.int8)


def of_tokens(x):
    scale, zero = QUANTIZED.choose_qparams_per_token_asymmetric(x, torch.int8)
    steps = QUANTIZED.quantize_per_token(x, scale, zero, *INT8)
    return QUANTIZED.dequantize_per_token(steps, scale, zero, *INT8, torch.float32)


def convolution(x, weights):
    """Of what is quantized, with weights by filter, as the quantizer for XNNPACK has it."""
    scales = weights.abs().amax((1, 2, 3)) / 127
    steps = QUANTIZED.quantize_per_channel(weights, scales, torch.zeros(4).long(), 0, -127, 127, torch.int8)
    filters = QUANTIZED.dequantize_per_channel(steps, scales, None, 0, -127, 127, torch.int8)
    data = QUANTIZED.quantize_per_tensor(x, STEP, ZERO, *INT8)
    return nn.functional.conv2d(QUANTIZED.dequantize_per_tensor(data, STEP, ZERO, *INT8), filters)


PER_TENSOR = QUANTIZED.quantize_per_tensor, QUANTIZED.dequantize_per_tensor
BY_TENSORS = QUANTIZED.quantize_per_tensor.tensor, QUANTIZED.dequantize_per_tensor.tensor
BY_CHANNELS = QUANTIZED.quantize_per_channel, QUANTIZED.dequantize_per_channel
ONE = [torch.tensor([STEP], dtype=torch.float64), torch.tensor([ZERO])]
CASES = {
    "int8": (both(*PER_TENSOR, 0.5, 3, *INT8), [NUMBERS]),
    "uint8": (both(*PER_TENSOR, STEP, 130, *UINT8), [NUMBERS]),
    "tensors": (both(*BY_TENSORS, *INT8), [NUMBERS, *ONE]),
    "limits as tensors": (with_limits_as_tensors, [NUMBERS, *ONE, torch.tensor(-100), torch.tensor(90)]),
    "channels": (both(*BY_CHANNELS, 1, -127, 127, torch.int8), [NUMBERS, SCALES, ZEROS]),
    "chosen": (chosen(QUANTIZED.choose_qparams.tensor, *UINT8), [NUMBERS]),
    "chosen around 0": (chosen(QUANTIZED.choose_qparams_symmetric.tensor, -127, 127, torch.int8), [NUMBERS]),
    "chosen around 128": (chosen(QUANTIZED.choose_qparams_symmetric.tensor, *UINT8), [NUMBERS]),
    "tokens": (of_tokens, [NUMBERS]),
    "convolution": (convolution, [NUMBERS, WEIGHTS]),
}


def test_as_in_torch():
    for results in results_of(CASES).values():
        assert_as_in_torch(results)
