"""Convolutions and products of int8 on x86: each sum is exact, also of the largest numbers."""

import numpy as np
import pytest
import torch

from tests.helpers import module, run
from topi_ext._processor import PROCESSORS, options_of_processor

from tvm import relay

NAMES = list(PROCESSORS)
MCPU = options_of_processor().get("mcpu")
RUN_HERE = NAMES[NAMES.index(MCPU) :] if MCPU else []


def extremes_of(dtype, *shape):
    """Numbers whose products are as large as they can be."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(0).choice([limits.min, limits.max], shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("channels", "filters"), [(16, 32), (6, 10)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("processor", RUN_HERE)
def test_a_convolution(processor, dilation, channels, filters, dtype):
    x, w = extremes_of(dtype, 1, channels, 5, 6), extremes_of("int8", filters, channels, 3, 3)
    data, zero, scale = relay.var("x", shape=x.shape, dtype=dtype), relay.const(0), relay.const(1.0)
    result = relay.qnn.op.conv2d(
        *(data, relay.const(w), zero, zero, scale, scale, (3, 3), filters), dilation=(dilation, dilation)
    )
    (found,) = run(module(data, result), x, target=f"llvm -mcpu={processor}")
    x, w = (torch.from_numpy(each).double() for each in (x, w))
    expected = torch.nn.functional.conv2d(x, w, dilation=dilation)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("processor", RUN_HERE)
def test_a_product(processor, dtype):
    x, w = extremes_of(dtype, 3, 64), extremes_of("int8", 32, 64)
    data, zero, scale = relay.var("x", shape=x.shape, dtype=dtype), relay.const(0), relay.const(1.0)
    result = relay.qnn.op.dense(data, relay.const(w), zero, zero, scale, scale, 32)
    (found,) = run(module(data, result), x, target=f"llvm -mcpu={processor}")
    np.testing.assert_array_equal(found, x.astype("int64") @ w.T.astype("int64"))
