"""Sums of float16 that are more than float16 holds, or that it rounds."""

import numpy as np

from tests.relax.onnx_cases.case import HALF, LATEST, case

MANY = np.full((1, 2, 60, 60), 40, "float16")  # whose sum float16 does not hold
SUMS_OF_HALF = {
    "Einsum": case("Einsum", HALF, HALF, equation="bchw,bdhw->bcd"),
    "GlobalAveragePool": case("GlobalAveragePool", MANY),
    "ReduceMean": case("ReduceMean", MANY, [2, 3], known=[1], opsets=(18, LATEST)),
    "ReduceL2": case("ReduceL2", HALF, [1], known=[1], opsets=(18, LATEST)),
    "Softmax": case("Softmax", HALF),
    "AveragePool": case("AveragePool", HALF, kernel_shape=[3, 3]),
    "LayerNormalization": case("LayerNormalization", HALF, HALF[0, 0, 0], HALF[0, 0, 1], known=[1, 2]),
    "BatchNormalization": case(
        "BatchNormalization", HALF, *[np.ones(4, "float16")] * 4, known=[1, 2, 3, 4], opsets=(15, LATEST)
    ),
    "Resize": case("Resize", HALF, None, np.float32([1, 1, 2, 3]), known=[2], mode="linear"),
    "Resize_averaged": case("Resize", HALF, None, None, [2, 4, 3, 5], known=[3], mode="linear", antialias=1),
}
