"""Comparisons with NaN, and what is not, as `topi_ext.corrections` has them, versus NumPy."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import module, run

from tvm import relay

NAMES = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0)


def compared(of, x, y, negate, both, either):
    """All comparisons, their negations, and those of two of them."""
    truths = [getattr(of, name)(x, y) for name in NAMES]
    others = [negate(both(truths[0], truths[1])), negate(either(truths[2], negate(truths[3])))]
    return [*truths, *map(negate, truths), *others]


@pytest.mark.parametrize("target", ["llvm", "native", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 64])
def test_nan_is_unordered(emulated_cuda, dtype, target, count):
    """With and without vectors: of each pair of special numbers."""
    pairs = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    x, y = pairs[:, :: 64 // count] if count > 1 else np.array([[1.0], [np.nan]])
    given = "float32" if dtype == "bfloat16" else dtype
    variables = [relay.var(name, shape=x.shape, dtype=given) for name in "xy"]
    operands = [relay.cast(variable, dtype) for variable in variables]
    truths = compared(relay, *operands, relay.logical_not, relay.logical_and, relay.logical_or)
    mod = module(*variables, relay.Tuple([*truths, relay.isnan(variables[1])]))
    arrays = [array.astype(given) for array in (x, y)]
    if target == "cuda":
        found = emulated_cuda.run_relay(mod, *arrays)
    else:
        found = run(mod, *arrays, target=topi_ext.cpu_target() if target == "native" else target)
    expected = compared(np, x, y, np.logical_not, np.logical_and, np.logical_or)
    for one, other in zip(found, [*expected, np.isnan(y)]):
        np.testing.assert_array_equal(one, other)


def test_what_is_chosen_by_a_comparison_that_is_not():
    array = np.array([*SPECIAL, -1.0], "float32")
    x = relay.var("x", shape=array.shape)
    chosen = relay.where(relay.logical_not(relay.greater(x, relay.const(0.0))), x, relay.const(7.0))
    np.testing.assert_array_equal(run(module(x, chosen), array)[0], np.where(~(array > 0), array, 7))
