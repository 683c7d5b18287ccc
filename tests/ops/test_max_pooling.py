"""Maxima of windows with infinities and NaN, as `topi_ext.corrections.max_pooling` has them, versus torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import topi_ext
from tests.helpers import module, run

from tvm import relay

# From a variable, and from a tensor of torch: in NCHW but for the first, whose vectors are of channels.
POOLS = {
    "2d in NHWC": (
        (2, 9, 7, 16),
        lambda x: relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1), layout="NHWC"),
        lambda x: functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1),
    ),
    "2d": (
        (2, 3, 9, 7),
        lambda x: relay.nn.max_pool2d(x, (5, 5), padding=(2, 2)),
        lambda x: functional.max_pool2d(x, 5, 1, 2),
    ),
    "1d": (
        (2, 3, 40),
        lambda x: relay.nn.max_pool1d(x, (2,), (2,)),
        lambda x: functional.max_pool1d(x, 2, 2),
    ),
    "3d": (
        (2, 2, 5, 6, 7),
        lambda x: relay.nn.max_pool3d(x, (3, 3, 3), (1, 1, 1), padding=(1, 1, 1)),
        lambda x: functional.max_pool3d(x, 3, 1, 1),
    ),
    "adaptive 1d": (
        (2, 3, 20),
        lambda x: relay.nn.adaptive_max_pool1d(x, 6),
        lambda x: functional.adaptive_max_pool1d(x, 6),
    ),
    "adaptive 2d": (
        (2, 3, 9, 7),
        lambda x: relay.nn.adaptive_max_pool2d(x, (4, 3)),
        lambda x: functional.adaptive_max_pool2d(x, (4, 3)),
    ),
    "adaptive 3d": (
        (2, 2, 4, 5, 6),
        lambda x: relay.nn.adaptive_max_pool3d(x, (2, 2, 4)),
        lambda x: functional.adaptive_max_pool3d(x, (2, 2, 4)),
    ),
    "global": (
        (5, 4, 3, 4),
        lambda x: relay.nn.global_max_pool2d(x),
        lambda x: functional.adaptive_max_pool2d(x, 1),
    ),
}


def special(shape):
    """Mostly minus infinity, among numbers and NaN of either sign."""
    chosen = [-np.inf, np.nan, -np.nan, np.inf, -0.5, 2.0]
    return np.random.default_rng(1).choice(chosen, shape, p=[0.86, 0.03, 0.03, 0.02, 0.03, 0.03])


@pytest.mark.parametrize("target", ["llvm", "onednn", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", POOLS)
def test_infinities_and_nan(emulated_cuda, name, dtype, target):
    if target == "cuda" and name == "global" and dtype in ("float16", "bfloat16"):
        pytest.skip("the emulated device has no volatile numbers of half precision, which nvcc has")
    shape, pool, of_torch = POOLS[name]
    array = special(shape)
    expected = of_torch(torch.from_numpy(array)).numpy()
    assert np.isnan(expected).any() and np.isneginf(expected).any()
    given = "float32" if dtype == "bfloat16" else dtype
    x = relay.var("x", shape=shape, dtype=given)
    mod = module(x, relay.cast(pool(relay.cast(x, dtype)), given))
    if target == "cuda":
        (found,) = emulated_cuda.run_relay(mod, array.astype(given))
    else:
        target = topi_ext.cpu_target() if target == "onednn" else target
        (found,) = run(mod, array.astype(given), target=target)
    np.testing.assert_array_equal(found, expected.astype(given))
