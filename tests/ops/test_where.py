"""`where` of rows whose number is known at run time, none too."""

import numpy as np
import pytest

import topi_ext  # noqa: F401  gives and mends TVM
from tests.helpers import module, run

from tvm import relay

ANY = relay.Any()


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("other", ["a scalar", "one", "as many"])
def test_rows_and_a_scalar(rows, other):
    condition = relay.var("condition", shape=(ANY, 4), dtype="bool")
    data = relay.var("data", shape=(ANY, 4))
    array = np.arange(rows * 4, dtype="float32").reshape(rows, 4)
    given = {"a scalar": np.float32(-1), "one": np.full((1, 1), -1, "float32"), "as many": -array}[other]
    argument = relay.var("other", shape=(ANY, 4)) if other == "as many" else relay.const(given)
    inputs = [condition, data] + [argument] * (other == "as many")
    arrays = [array % 2 == 0, array] + [given] * (other == "as many")
    for order in ((data, argument), (argument, data)):
        (found,) = run(module(*inputs, relay.where(condition, *order)), *arrays)
        first, second = (array, given) if order[0] is data else (given, array)
        np.testing.assert_array_equal(found, np.where(array % 2 == 0, first, second))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_ranks_may_differ(rows):
    condition = relay.var("condition", shape=(ANY,), dtype="bool")
    data = relay.var("data", shape=(ANY, 1))
    array = np.arange(rows, dtype="float32")[:, None]
    (found,) = run(
        module(condition, data, relay.where(condition, data, relay.const(7.0))),
        np.array([True, False]),
        array,
    )
    np.testing.assert_array_equal(found, np.where([True, False], array, np.float32(7)))


def test_lengths_that_do_not_go_together():
    condition, data = relay.var("condition", shape=(ANY,), dtype="bool"), relay.var("data", shape=(ANY,))
    mod = module(condition, data, relay.where(condition, data, relay.const(0.0)))
    with pytest.raises(Exception, match="Invalid broadcast shapes"):
        run(mod, np.ones(2, bool), np.ones(3, "float32"))


@pytest.mark.parametrize("numbers", [(2,), (2, 3)])
def test_what_scalars_index_goes_into_rows(numbers):
    """The two are one kernel, so that its size is asked of both."""
    data, rows = relay.var("data", shape=(5, 4, 3)), relay.var("rows", shape=(ANY, *taken_shape(numbers)))
    places = [relay.var(f"place{number}", shape=(), dtype="int64") for number in numbers]
    taken = relay.expand_dims(relay.adv_index([data, *places]), 0)
    mod = module(data, rows, *places, relay.concatenate([rows, taken], 0))
    arrays = np.arange(60, dtype="float32").reshape(5, 4, 3), np.ones((2, *taken_shape(numbers)), "float32")
    (found,) = run(mod, *arrays, *map(np.int64, numbers))
    np.testing.assert_array_equal(found, np.concatenate([arrays[1], arrays[0][numbers][None]]))


def taken_shape(numbers):
    return (5, 4, 3)[len(numbers) :]
