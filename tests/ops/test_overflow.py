"""Integers that overflow, and what is computed from them in the same kernel, versus NumPy."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import module, run

from tvm import relay

WIDER = {"int8": "int32", "int16": "int64", "int32": "int64", "uint32": "int64", "int64": "float64"}
COMPUTED = {
    "sum": lambda of, x, y: of.add(x, y),
    "difference": lambda of, x, y: of.subtract(x, y),
    "product": lambda of, x, y: of.multiply(x, y),
    "three times": lambda of, x, y: of.multiply(x, 3),
    "next": lambda of, x, y: of.add(x, 1),
    "negative": lambda of, x, y: of.negative(x),
    "polynomial": lambda of, x, y: of.add(of.multiply(of.subtract(x, y), 5), y),
}


class OfRelay:
    """Operators of Relay by NumPy's names, which take numbers, too."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __getattr__(self, name):
        def call(*operands):
            return getattr(relay, name)(*map(self.operand, operands))

        return call

    def operand(self, value):
        return relay.const(value, self.dtype) if isinstance(value, int) else value


def behind(of, value, x):
    """What a compiler simplifies if nothing overflows, without a cast."""
    return [of.greater(value, x), of.maximum(value, x), of.floor_divide(value, 3)]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("target", ["llvm", "native", "cuda"])
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("dtype", WIDER)
def test_integers_wrap_around(emulated_cuda, dtype, name, target):
    info = np.iinfo(dtype)
    left, right = np.random.default_rng(0).integers(info.min, info.max, (2, 64), dtype, endpoint=True)
    left[:3], right[:3] = (info.max, info.min, info.max), (1, info.max, info.max)
    x, y = (relay.var(letter, shape=left.shape, dtype=dtype) for letter in "xy")
    of_relay = OfRelay(dtype)
    value, expected = COMPUTED[name](of_relay, x, y), COMPUTED[name](np, left, right)
    assert expected.dtype == dtype
    truths = [
        (relay.cast(value, WIDER[dtype]), expected.astype(WIDER[dtype])),
        *zip(behind(of_relay, value, x), behind(np, expected, left)),
    ]
    for one, wrapped in truths:  # each a kernel of its own, in which the value is not stored
        mod = module(x, y, one)
        if target == "cuda":
            (found,) = emulated_cuda.run_relay(mod, left, right)
        else:
            (found,) = run(mod, left, right, target=topi_ext.cpu_target() if target == "native" else target)
        np.testing.assert_array_equal(found, wrapped)
