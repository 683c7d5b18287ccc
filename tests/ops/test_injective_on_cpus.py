"""What CPUs compute element by element: transposed by tiles, in vectors that divide rows; against NumPy."""

import numpy as np
import pytest

from tests.helpers import module, run
from topi_ext._places import computed_in, is_arithmetic
from topi_ext.corrections.injective_on_cpus import _tile

from tvm import relay, te, topi


def given(*shape):
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((3, 40, 32), (0, 2, 1)),
        ((2, 12, 5, 24), (3, 0, 2, 1)),
        ((1, 64, 64, 32), (0, 3, 1, 2)),  # rows 16 KB apart in memory
        ((2, 32, 64, 64), (0, 2, 3, 1)),
        ((7, 49, 36), (2, 1, 0)),
        ((24, 20), (1, 0)),
    ],
    ids=str,
)
def test_transposed(shape, axes):
    """What comes before and behind is in the same kernel."""
    x = relay.var("x", shape=shape)
    doubled = relay.transpose(x * relay.const(2.0), axes) + relay.const(1.0)
    (found,) = run(module(x, doubled), given(*shape))
    np.testing.assert_array_equal(found, given(*shape).transpose(axes) * 2 + 1)


@pytest.mark.parametrize("channels", [36, 60, 72, 24, 7, 16])
def test_rows_of_any_length(channels):
    shape = 2, 5, 3, channels
    x, factor = relay.var("x", shape=shape), relay.var("factor", shape=(1, 1, 1, channels))
    (found,) = run(module(x, factor, x * factor), given(*shape), given(1, 1, 1, channels))
    np.testing.assert_array_equal(found, given(*shape) * given(channels))


def test_parts_of_a_layer_that_are_transposed():
    """Queries, keys and values whose channels attend to one another: several results of one kernel."""
    x = relay.var("x", shape=(1, 4, 6, 3 * 2 * 16))
    heads = relay.transpose(relay.reshape(x, (1, 24, 3, 2, 16)), (2, 0, 3, 4, 1))
    found = run(module(x, relay.split(heads, 3, 0).astuple()), given(1, 4, 6, 96))
    expected = given(1, 24, 3, 2, 16).transpose(2, 0, 3, 4, 1)
    for part, wanted in zip(found, np.split(expected, 3)):
        np.testing.assert_array_equal(part, wanted)


def test_functions_keep_the_vectors_of_tvm():
    """Their polynomials take as long for four numbers as for sixteen."""
    x = te.placeholder((8, 36))
    assert all(map(is_arithmetic, computed_in(topi.nn.relu(x * x))))
    assert not all(map(is_arithmetic, computed_in(topi.nn.relu(topi.erf(x)))))


@pytest.mark.parametrize(
    "shape, axes, tile",
    [
        ((3, 40, 32), (0, 2, 1), (1, 16, 8)),
        ((1, 32, 64, 64), (0, 2, 3, 1), (2, 16, 4)),  # rows 16 KB apart in memory
        ((3, 40, 32), (1, 0, 2), None),  # rows stay rows
        ((3, 40, 31), (0, 2, 1), None),  # nothing divides them
    ],
    ids=str,
)
def test_tiles(shape, axes, tile):
    out = topi.nn.relu(topi.transpose(te.placeholder(shape), axes))
    assert _tile(out, [int(extent) for extent in out.shape]) == tile
