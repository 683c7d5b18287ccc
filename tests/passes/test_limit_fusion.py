import time

import numpy as np
import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, ops, quick, run
from tvm_passes import LimitFusion, runtime
from tvm_passes.runtime.profiling import profile

from tvm import relay


def chain(length):
    """Each link has two users of the one before, and TVM writes what `tanh` reads five times."""
    x = y = relay.var("x", shape=(5, 7))
    for _ in range(length):
        y = relay.multiply(relay.tanh(y), y)
    return module(x, y)


def test_what_would_be_computed_often_is_written():
    mod = chain(30)
    after, report = apply(LimitFusion(), mod)
    stops = ops(after).count("annotation.stop_fusion")
    assert 4 <= stops <= 15 and len(report.passes[0].rewrites) == stops
    assert [name for name in ops(after) if name != "annotation.stop_fusion"] == ops(mod)
    assert_no_second_change(LimitFusion(), after)


def test_it_is_ready_in_seconds_and_right():
    start = time.process_time()
    model = runtime.compile(LimitFusion()(chain(30)), "llvm")
    array = np.linspace(-3, 3, 35, dtype="float32").reshape(5, 7)
    expected = array.astype("float64")
    for _ in range(30):
        expected = np.tanh(expected) * expected
    np.testing.assert_allclose(model(array), expected, rtol=1e-3, atol=1e-6)
    assert time.process_time() - start < 30


@pytest.mark.parametrize("length", [1, 2, 4])
def test_what_is_small_stays_whole(length):
    mod = chain(length)
    after, report = apply(LimitFusion(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []


def test_what_is_split_is_written_once():
    """TVM computes all that leads to a split again for each of its results."""

    def of_parts(sections):
        x = y = relay.var("x", shape=(24, 7))
        for _ in range(100):
            y = relay.sigmoid(y)
        return module(x, relay.split(y, sections).astuple())

    mod = of_parts(12)
    after = assert_same_numbers(LimitFusion(), mod, np.linspace(-3, 3, 168, dtype="float32").reshape(24, 7))
    assert ops(after) == [*ops(mod)[:-1], "annotation.stop_fusion", "split"]
    assert apply(LimitFusion(), of_parts(2))[1].passes[0].matches == []


def test_a_long_chain_in_which_nothing_is_computed_twice_stays():
    x = y = relay.var("x", shape=(5,))
    for _ in range(300):
        y = relay.exp(y)
    assert apply(LimitFusion(), module(x, y))[1].passes[0].matches == []


def test_convolutions_and_sums_end_an_expression():
    x = y = relay.var("x", shape=(4, 4))
    for _ in range(30):
        y = relay.nn.dense(relay.add(y, relay.tanh(y)), relay.const(np.eye(4, dtype="float32")))
    assert apply(LimitFusion(), module(x, y))[1].passes[0].matches == []


def test_through_tuples():
    x = y = relay.var("x", shape=(8,))
    for _ in range(4):
        left, right = relay.split(relay.add(y, relay.tanh(y)), 2)
        y = relay.concatenate([right, left], 0)
    after = assert_same_numbers(LimitFusion(), module(x, y), np.linspace(-1, 0, 8, dtype="float32"))
    assert "annotation.stop_fusion" in ops(after)
    assert_no_second_change(LimitFusion(), after)


def test_in_a_branch():
    x = y = relay.var("x", shape=(8,))
    expected = array = np.linspace(-1, 0, 8, dtype="float32")
    for _ in range(6):
        y, expected = relay.add(y, relay.tanh(y)), expected + np.tanh(expected)
    mod = module(x, relay.If(relay.less(relay.sum(x), relay.const(0.0)), y, x))
    after, _ = apply(LimitFusion(), mod)
    assert "annotation.stop_fusion" in ops(after)
    np.testing.assert_allclose(run(after, array)[0], expected, rtol=1e-5)  # `mod` would compile for minutes


def in_windows(x, *, then=relay.exp):
    """What reads (n, h, w, 4) in windows of 2x2."""
    windows = relay.reshape(relay.exp(x), (-1, 2, 2, 4))
    return module(x, then(windows))


def of_unknown_size(*shape):
    return relay.var("x", shape=[size or relay.Any() for size in shape])


def test_a_reshape_to_unknown_sizes_copies_nothing():
    mod = in_windows(of_unknown_size(1, None, None, 4))
    array = np.random.default_rng(0).random((1, 4, 6, 4), "float32")
    after = assert_same_numbers(LimitFusion(), mod, array)
    stop = "annotation.stop_fusion"
    assert ops(after) == ["exp", stop, "reshape", stop, "exp"]
    assert_no_second_change(LimitFusion(), after)
    names = [kernel.name for kernel in profile(runtime.compile(after, quick()), array)]
    assert "VM::ReshapeTensor" in names
    assert not any("reshape" in name for name in names if not name.startswith("shape_func"))


@pytest.mark.parametrize(
    "shape, new_shape", [((4, 8), (-1, 2)), ((None, 6, None), (0, 6, 8)), ((None, 8), (0, -1))]
)
def test_a_reshape_that_divides_by_numbers_or_tells_sizes_stays_in_its_kernel(shape, new_shape):
    x = of_unknown_size(*shape)
    mod = module(x, relay.exp(relay.reshape(relay.exp(x), new_shape)))
    assert apply(LimitFusion(), mod)[0].same_as(mod)
    array = np.random.default_rng(0).random([size or 8 for size in shape], "float32")
    (found,) = run(mod, array)
    np.testing.assert_allclose(found.ravel(), np.exp(np.exp(array)).ravel(), rtol=1e-5)
