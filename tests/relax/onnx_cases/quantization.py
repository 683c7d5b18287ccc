"""Numbers that are quantized, and what is computed of them."""

import numpy as np

from tests.relax.onnx_cases.case import LATEST, case, integers, random

NUMBERS = random(2, 4, 5, 6) * 9
# Halves of a step, which go to the even one, and what is beyond the ends.
NUMBERS[0, 0, 0] = [0.25, 0.75, -0.25, -0.75, 1000.0, -1000.0]
HALF, STEP = np.float32(0.5), np.float32(0.0123)
STEPS = np.float32([0.5, 0.0123, 0.07, 1.5])
BYTES, SIGNED = (integers(0, 255, 2, 4, 5, 6, dtype="uint8"), integers(-128, 127, 2, 4, 5, 6, dtype="int8"))
WEIGHTS, UNSIGNED = integers(-127, 127, 3, 4, 3, 3, dtype="int8"), integers(0, 255, 3, 4, 3, 3, dtype="uint8")
SUMS, BIAS = integers(-99999, 99999, 4, 6, dtype="int32"), integers(-9999, 9999, 3, dtype="int32")
LEFT, RIGHT = integers(0, 255, 2, 5, 7, dtype="uint8"), integers(-127, 127, 7, 3, dtype="int8")
OF_FILTERS = np.float32([0.01, 0.002, 0.03])
NEW = {"opsets": (21, LATEST)}


def zero(number, dtype="uint8"):
    return np.asarray(number, dtype)


QUANTIZATION = {
    "QuantizeLinear": case("QuantizeLinear", NUMBERS, HALF, zero(3), known=[1, 2]),
    "QuantizeLinear_signed": case("QuantizeLinear", NUMBERS, STEP, zero(-7, "int8")),
    "QuantizeLinear_without": case("QuantizeLinear", NUMBERS, HALF, known=[1]),
    "QuantizeLinear_axis": case("QuantizeLinear", NUMBERS, STEPS, zero([3, 0, 9, 255]), known=[1, 2]),
    "QuantizeLinear_last": case("QuantizeLinear", NUMBERS[..., :4], STEPS, axis=-1),
    "QuantizeLinear_row": case("QuantizeLinear", NUMBERS[0, 0, 0], STEP.reshape(1), zero([3], "int8")),
    "QuantizeLinear_long": case("QuantizeLinear", NUMBERS, STEP, zero(-70, "int16"), **NEW),
    "QuantizeLinear_type": case("QuantizeLinear", NUMBERS, STEP, output_dtype=3, **NEW),
    "QuantizeLinear_half": case(
        "QuantizeLinear", NUMBERS.astype("float16"), np.float16(0.013), zero(-7, "int8"), **NEW
    ),
    "QuantizeLinear_blocks": case(
        "QuantizeLinear",
        NUMBERS[0, 0],
        random(5, 3) ** 2 + 0.1,
        zero(np.full((5, 3), 9)),
        block_size=2,
        **NEW,
    ),
    "DequantizeLinear": case("DequantizeLinear", BYTES, STEP, zero(7)),
    "DequantizeLinear_axis": case(
        "DequantizeLinear", SIGNED, STEPS, zero([3, 0, 9, -5], "int8"), known=[1, 2]
    ),
    "DequantizeLinear_without": case("DequantizeLinear", SIGNED, STEP),
    "DequantizeLinear_sums": case("DequantizeLinear", SUMS, STEPS, axis=0),
    "DequantizeLinear_half": case("DequantizeLinear", SIGNED, np.float16(0.013), zero(7, "int8"), **NEW),
    "DequantizeLinear_blocks": case(
        "DequantizeLinear",
        SIGNED[0, 0],
        random(3, 6),
        zero(integers(-9, 9, 3, 6), "int8"),
        axis=0,
        block_size=2,
        **NEW,
    ),
    "DynamicQuantizeLinear": case("DynamicQuantizeLinear", NUMBERS, outputs=3),
    "DynamicQuantizeLinear_of_zeros": case("DynamicQuantizeLinear", 0 * NUMBERS, outputs=3),
    "ConvInteger": case("ConvInteger", BYTES, UNSIGNED, zero(7), zero(9), known=[1, 2, 3], pads=[1, 1, 1, 1]),
    "ConvInteger_without": case("ConvInteger", BYTES, UNSIGNED, strides=[2, 1]),
    "MatMulInteger": case("MatMulInteger", LEFT, RIGHT, zero(7), zero([1, -2, 3], "int8"), known=[1, 2, 3]),
    "MatMulInteger_without": case("MatMulInteger", LEFT, RIGHT),
    "QLinearConv": case(
        "QLinearConv",
        *(BYTES, STEP, zero(120), WEIGHTS, OF_FILTERS, zero([0, 0, 0], "int8"), HALF, zero(100), BIAS),
        known=range(1, 9),
        strides=[1, 2],
    ),
    "QLinearConv_without": case(
        "QLinearConv", BYTES, STEP, zero(120), UNSIGNED, STEP, zero(130), HALF, zero(100), known=range(1, 8)
    ),
    "QLinearMatMul": case(
        "QLinearMatMul",
        LEFT,
        STEP,
        zero(120),
        RIGHT,
        STEP,
        zero(3, "int8"),
        HALF,
        zero(100),
        known=range(1, 8),
    ),
}
