"""What moves and rounds int8 on CUDA as it is corrected, on the emulated device."""

import re
import shutil

import numpy as np
import pytest

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers
from tests.ops.nvcc import assert_compiles_without_spills
from tvm_passes.quantize.numbers import quantized

import tvm
from tvm import relay

NEAREST = {"layout": "NHWC", "method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}


def rounded(x):
    return quantized(relay.cast(x, "float32"), 0.03)


# By name: what is computed of a tensor, its channels and type, and the bytes that a thread stores.
CASES = {
    "resize": (lambda x: relay.image.resize2d(x, (10, 14), **NEAREST), 32, "int8", 16),
    "of an odd size": (lambda x: relay.image.resize2d(x, (9, 5), **NEAREST), 24, "uint8", 8),
    "of few channels": (lambda x: relay.image.resize2d(x, (10, 14), **NEAREST), 12, "int8", 4),
    "of six channels": (lambda x: relay.image.resize2d(x, (10, 14), **NEAREST), 6, "int8", 1),
    "slice": (lambda x: relay.strided_slice(x, [1, 2], [5, 7], [2, 1], axes=[1, 2]), 16, "int8", 16),
    "slice of the first ones": (lambda x: relay.strided_slice(x, [0], [16], [1], axes=[3]), 18, "int8", 1),
    "slice of channels": (lambda x: relay.strided_slice(x, [1], [9], [1], axes=[3]), 16, "int8", 1),
    "transpose": (lambda x: relay.transpose(x, (0, 1, 3, 2)), 16, "int8", 1),
    "pad": (lambda x: relay.nn.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), -3), 16, "int8", 4),
    "pad of channels": (lambda x: relay.nn.pad(x, ((0, 0),) * 3 + ((1, 3),)), 16, "int8", 1),
    "concatenation": (lambda x: relay.concatenate([x, x], 1), 16, "int8", 4),
    "concatenation of channels": (lambda x: relay.concatenate([x, x], 3), 16, "int8", 1),
    "rounding": (rounded, 16, "float16", 4),
    "rounding, resized": (lambda x: relay.image.resize2d(rounded(x), (10, 14), **NEAREST), 8, "float16", 4),
    "maximum of bytes": (lambda x: relay.maximum(x, relay.const(3, "int8")), 16, "int8", 1),
    "sum of bytes": (lambda x: relay.add(x, x), 16, "uint8", 4),
    "a byte for a row": (lambda x: relay.broadcast_to(x, (2, 5, 7, 16)), 1, "int8", 1),
    "not of bytes": (lambda x: relay.image.resize2d(x, (10, 14), **NEAREST), 16, "int32", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_as_on_a_cpu(emulated_cuda, tmp_path, name):
    build, channels, dtype, bytes_ = CASES[name]
    x = relay.var("x", shape=(2, 5, 7, channels), dtype=dtype)
    function = relay.Function([x], build(x))
    scale = 1 if dtype == "float16" else 60
    data = (numbers(2, 5, 7, channels) * scale).astype("int8" if dtype == "uint8" else dtype).astype(dtype)
    (found,) = emulated_cuda.run_relay(function, data)
    expected = relay.create_executor("graph", tvm.IRModule.from_expr(function)).evaluate()(data).numpy()
    np.testing.assert_array_equal(found, expected)
    source = emulated_cuda.sources[-1]
    stores = re.findall(r"\*\(u?(int\d?)\*\)\(\w+ \+ [^;=]*\) = ", source)
    assert set(stores) == {16: {"int4"}, 8: {"int2"}, 4: {"int"}, 1: set()}[bytes_]
    if shutil.which("nvcc") and bytes_ > 1:
        assert_compiles_without_spills(source, tmp_path, kernels=1)


def test_the_nearest_of_large_integers_are_exact():
    x = relay.var("x", shape=(1, 1, 2, 3), dtype="int32")
    data = np.int32([2**24 + 1, -(2**31) + 1, 2**31 - 1] * 2).reshape(1, 1, 2, 3)
    resized = relay.Function([x], relay.image.resize2d(x, (4, 6), **{**NEAREST, "layout": "NCHW"}))
    found = relay.create_executor("graph", tvm.IRModule.from_expr(resized)).evaluate()(data).numpy()
    np.testing.assert_array_equal(found, data.repeat(2, 2).repeat(2, 3))
