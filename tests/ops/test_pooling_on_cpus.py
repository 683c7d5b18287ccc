"""Pooling on CPUs as it is corrected: the same as torch's, in registers, of whole vectors."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import topi_ext  # noqa: F401  it corrects TVM
from tests.helpers import numbers, run, runner
from tests.ops.test_pooling import POOLS, expected_of, function_of

import tvm
from tvm import relay, te, topi

CASES = [
    ((1, 12, 11, 48), 3, 2, 1),
    ((2, 9, 8, 24), 5, 1, 2),
    ((1, 6, 7, 10), 2, 2, 0),
    ((1, 6, 7, 5), 3, 1, 1),  # an odd number of channels
]


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float16", 4e-3)])
@pytest.mark.parametrize("shape, size, stride, padding", CASES)
def test_pooled(kind, shape, size, stride, padding, dtype, tolerance):
    data = numbers(*shape, dtype=dtype)
    function = function_of(kind, shape, size, stride, padding, dtype, behind=relay.nn.relu)
    (found,) = run(tvm.IRModule.from_expr(function), data)
    expected = np.maximum(expected_of(kind, data, size, stride, padding), 0)
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize("shape, size, stride, padding", CASES)
def test_maxima_of_int8(shape, size, stride, padding):
    data = (numbers(*shape) * 40).astype("int8")
    (found,) = run(tvm.IRModule.from_expr(function_of("max", shape, size, stride, padding, "int8")), data)
    np.testing.assert_array_equal(found, expected_of("max", data, size, stride, padding))


def test_images_of_any_size():
    x = relay.var("x", shape=(relay.Any(), relay.Any(), relay.Any(), 24))
    y = relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1), layout="NHWC", ceil_mode=True)
    call = runner(tvm.IRModule.from_expr(relay.Function([x], y)))
    for shape in ((1, 7, 10, 24), (3, 12, 5, 24)):
        data = numbers(*shape)
        planes = torch.from_numpy(data).permute(0, 3, 1, 2)
        expected = functional.max_pool2d(planes, 3, 2, 1, ceil_mode=True).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(call(data)[0], expected)


def test_blocks_of_channels():
    """As TVM has them where it computes convolutions itself."""
    x = relay.var("x", shape=(1, 2, 9, 8, 12))
    y = relay.nn.avg_pool2d(x, (3, 3), padding=(1, 1), layout="NCHW12c", count_include_pad=True)
    data = numbers(1, 2, 9, 8, 12)
    planes = torch.from_numpy(data).permute(0, 1, 4, 2, 3).reshape(1, 24, 9, 8)
    expected = functional.avg_pool2d(planes, 3, 1, 1).reshape(1, 2, 12, 9, 8).permute(0, 1, 3, 4, 2)
    (found,) = run(tvm.IRModule.from_expr(relay.Function([x], y)), data)
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


@pytest.mark.parametrize("channels, lanes", [(80, 16), (24, 8), (12, 4)])
def test_sums_stay_in_vectors_of_powers_of_two(channels, lanes):
    x = te.placeholder((1, 9, 9, channels), name="x")
    y = topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")
    with tvm.target.Target("llvm"):
        text = str(tvm.lower(topi.x86.schedule_pool([y], "NHWC"), [x, y]))
    assert f'T.allocate([{lanes}], "float32", "local")' in text
