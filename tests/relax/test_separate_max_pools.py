"""SeparateMaxPools over graphs of Relax: which pools it takes apart, and that they find the same."""

import numpy as np
import pytest

from tests.relax.modules import compiled, module_of, run, types_of
from tests.relax.test_passes import operators
from tvm_passes.relax import SeparateMaxPools

from tvm import relax

POOL = "relax.nn.max_pool2d"
NUMBERS = np.random.default_rng(3).integers(-99, 99, (2, 9, 11, 4)).astype("float32")
NUMBERS.flat[::37] = np.nan
NUMBERS.flat[5::41] = -np.inf


def pooled(**attrs):
    def build(variables):
        return relax.op.nn.max_pool2d(variables[0], layout="NHWC", **attrs)

    return module_of({"main": (build, types_of([NUMBERS]))})


@pytest.mark.parametrize(
    "attrs",
    [
        {"pool_size": (5, 5), "padding": (2, 2)},
        {"pool_size": (3, 4), "strides": (1, 2), "dilation": (2, 1), "padding": (0, 1, 2, 3)},
        {"pool_size": (5, 5), "strides": (2, 1), "padding": (2, 1), "ceil_mode": True},
    ],
    ids=str,
)
def test_one_axis_after_the_other(attrs):
    before = pooled(**attrs)
    after = SeparateMaxPools()(before)
    assert operators(after) == [POOL, POOL]
    np.testing.assert_array_equal(*(run(compiled(each), [NUMBERS])[0] for each in (before, after)))


def test_where_one_is_as_fast():
    after = SeparateMaxPools()(pooled(pool_size=(3, 3), strides=(2, 2)))
    assert operators(after) == [POOL]
