"""PoolByMeans: structure, numbers, refusals, and nothing more the second time."""

import pytest

from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import PoolByMeans

from tvm import relay

SHAPE = (2, 3, 5, 7)


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float16", 5e-3)])
@pytest.mark.parametrize(
    "pool",
    [
        relay.nn.global_avg_pool2d,
        lambda x: relay.nn.global_avg_pool2d(x, layout="NHWC"),
        lambda x: relay.nn.adaptive_avg_pool2d(x, (1, 1)),
        lambda x: relay.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"),
    ],
)
def test_rows_first(pool, dtype, rtol):
    x = relay.var("x", shape=SHAPE, dtype=dtype)
    after = assert_same_numbers(
        PoolByMeans(), module(x, pool(x)), numbers(*SHAPE, dtype=dtype), rtol=rtol, atol=rtol
    )
    assert [name for name in ops(after) if name != "cast"] == ["mean", "nn.global_avg_pool2d"]
    assert_no_second_change(PoolByMeans(), after)


def test_lengths_known_at_run_time():
    x = relay.var("x", shape=(relay.Any(), 3, relay.Any(), relay.Any()))
    mod = module(x, relay.nn.global_avg_pool2d(x))
    after = assert_same_numbers(PoolByMeans(), mod, numbers(*SHAPE), rtol=1e-5, atol=1e-5)
    assert ops(after) == ["mean", "nn.global_avg_pool2d"]
    assert_no_second_change(PoolByMeans(), after)


def test_integers_are_refused():
    x = relay.var("x", shape=SHAPE, dtype="int32")
    after, report = apply(PoolByMeans(), module(x, relay.nn.global_avg_pool2d(x)))
    assert ops(after) == ["nn.global_avg_pool2d"]
    assert refusals(report) == ["a mean of integers is rounded, and rounding each row's mean would change it"]


def test_split_channels_are_refused():
    x = relay.var("x", shape=(1, 2, 5, 7, 8))
    mod = module(x, relay.nn.global_avg_pool2d(x, layout="NCHW8c"))
    after, report = apply(PoolByMeans(), mod)
    assert after.same_as(mod) and refusals(report) == ["the layout splits or moves the channels"]


def test_pooling_to_more_pixels_is_no_match():
    x = relay.var("x", shape=SHAPE)
    after, report = apply(PoolByMeans(), module(x, relay.nn.adaptive_avg_pool2d(x, (2, 1))))
    assert ops(after) == ["nn.adaptive_avg_pool2d"] and report.passes[0].matches == []
