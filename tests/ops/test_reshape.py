"""Reshapes whose shape is known at run time, of no elements too, and never to another number of them."""

import time

import numpy as np
import pytest

import topi_ext  # noqa: F401  gives and mends TVM
from tests.helpers import module, run, runner

import tvm
from tvm import relay

SHAPES = [
    ((0, 4, 1), (0, -1), (0, 4)),
    ((0, 4, 1), (0, -1, 1), (0, 4, 1)),
    ((0, 6), (-1, 2), (0, 2)),
    ((0, 6), (0, -1, 2), (0, 3, 2)),
    ((3, 6), (0, -1, 2), (3, 3, 2)),
    ((3, 0), (0, -1), (3, 0)),
    ((3, 0), (-1, 5), (0, 5)),
    ((2, 3, 4), (0, 12), (2, 12)),
    ((2, 3, 4), (-1,), (24,)),
    ((2, 3, 4), (-1, 2, 3), (4, 2, 3)),
    ((0, 3, 4), (-3, 0), (0, 4)),
    ((0, 3, 4), (0, -2), (0, 3, 4)),
]


@pytest.mark.parametrize("shape, new_shape, expected", SHAPES)
def test_shape_of_unknown_rows(shape, new_shape, expected):
    data = relay.var("data", shape=[relay.Any()] * len(shape), dtype="float32")
    array = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    (found,) = run(module(data, relay.reshape(data, new_shape)), array)
    np.testing.assert_array_equal(found, array.reshape(expected))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape, new_shape, expected", [case for case in SHAPES if min(case[1]) >= -1])
def test_new_shape_known_at_run_time(shape, new_shape, expected, dtype):
    data = relay.var("data", shape=[relay.Any()] * len(shape), dtype="float32")
    wanted = relay.var("wanted", shape=(len(new_shape),), dtype=dtype)
    array = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    (found,) = run(module(data, wanted, relay.reshape(data, wanted)), array, np.array(new_shape, dtype))
    np.testing.assert_array_equal(found, array.reshape(expected))


@pytest.mark.parametrize(
    "new_shape, reason",
    [((-2, -3), "is negative"), ((-1, -1), "more than one length of its new shape is -1")],
)
def test_lengths_that_are_none_are_refused(new_shape, reason):
    data, wanted = relay.var("data", shape=(relay.Any(),)), relay.var("wanted", shape=(2,), dtype="int64")
    with pytest.raises(tvm.TVMError, match=reason):
        run(module(data, wanted, relay.reshape(data, wanted)), np.ones(6, "float32"), np.array(new_shape))


def test_zero_may_be_a_length():
    data = relay.var("data", shape=(relay.Any(), relay.Any()), dtype="float32")
    (found,) = run(module(data, relay.reshape(data, (3, 0), allowzero=True)), np.ones((0, 4), "float32"))
    assert found.shape == (3, 0)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("shape, new_shape", [((6, 5), (4, 0)), ((2, 5), (4, 0)), ((3, 3), (-1, 4))])
def test_another_number_of_elements_is_refused(shape, new_shape, is_fused):
    """Where the tensor was read beyond its end, or some of it was ignored."""
    data = relay.var("data", shape=(relay.Any(), relay.Any()), dtype="float32")
    result = relay.reshape(relay.exp(data) if is_fused else data, new_shape)
    with pytest.raises(tvm.TVMError, match="another number of elements than its new shape"):
        run(module(data, relay.exp(result) if is_fused else result), np.ones(shape, "float32"))


def test_another_number_of_elements_than_of_a_computed_shape_is_refused():
    data = relay.var("data", shape=(relay.Any(), relay.Any()), dtype="float32")
    wanted = relay.var("wanted", shape=(2,), dtype="int64")
    with pytest.raises(tvm.TVMError, match="another number of elements than its new shape"):
        run(module(data, wanted, relay.reshape(data, wanted)), np.ones((4, 5), "float32"), np.array([2, 5]))


def test_a_computed_shape_of_six_lengths_compiles_in_a_second():
    """TVM took seven to simplify one expression for each of them."""
    data = relay.var("data", shape=[relay.Any()] * 4, dtype="float32")
    wanted = relay.var("wanted", shape=(6,), dtype="int64")
    start = time.process_time()
    run_once = runner(module(data, wanted, relay.reshape(data, wanted)))
    assert time.process_time() - start < 3
    (found,) = run_once(np.ones((2, 3, 4, 6), "float32"), np.array([0, 3, 2, -1, 2, 3]))
    assert found.shape == (2, 3, 2, 2, 2, 3)
