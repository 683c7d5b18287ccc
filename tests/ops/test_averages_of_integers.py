"""Averages of integers, whose type holds an average, but not the sum, nor how many there are."""

import numpy as np
import pytest

from tests.helpers import module, run
from tests.ops.corrected import run_on

from tvm import relay

SHAPE = 1, 3, 16, 16
AVERAGES = {
    "mean": lambda x: relay.mean(x, [1, 2, 3]),
    "global": relay.nn.global_avg_pool2d,
    "windows": lambda x: relay.nn.avg_pool2d(x, (4, 4), strides=(4, 4)),
    "windows of any size": lambda x: relay.nn.adaptive_avg_pool2d(x, (3, 3)),
}


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_an_average(target, dtype, name, emulated_cuda):
    x = relay.var("x", shape=SHAPE, dtype=dtype)
    data = np.full(SHAPE, min(np.iinfo(dtype).max - 3, 2**30), dtype)
    data[..., ::2] += 2
    found = run_on(target, emulated_cuda, module(x, AVERAGES[name](x)), data)
    assert found.dtype == dtype
    assert abs(found.astype("int64") - int(data.astype("int64").mean())).max() <= 1


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_a_variance(dtype):
    """TVM wrote four bytes for each of one."""
    x = relay.var("x", shape=SHAPE, dtype=dtype)
    data = np.full(SHAPE, 90, dtype)
    data[..., ::2] = 100
    (found,) = run(module(x, relay.variance(x, [1, 2, 3])), data)
    np.testing.assert_array_equal(found, [25])
