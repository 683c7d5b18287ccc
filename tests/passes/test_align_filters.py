"""AlignFilters: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import AlignFilters

from tvm import relay

TARGET = "cuda -arch=sm_90 -libs=cudnn-frontend"
SHAPE = 1, 6, 7, 128


pytestmark = pytest.mark.usefixtures("small_by_cudnn")


def weights(filters, channels=SHAPE[-1], kernel=3):
    array = numbers(filters, kernel, kernel, channels) / 30
    return relay.const(array.astype("float16"))


def convolution(filters=60, x=None, **options):
    x = relay.var("x", shape=SHAPE, dtype="float16") if x is None else x
    bias = relay.const(numbers(filters, seed=3))
    options = {"bias": bias, "padding": 1, "activation": "relu", **options}
    return x, topi_ext.conv2d_nhwc(x, options.pop("weight", weights(filters)), **options)


def filters_of(mod):
    (call,) = (node for node in nodes(mod) if node.op.name == "topi_ext.conv2d_nhwc")
    return int(call.args[1].checked_type.shape[0])


def nodes(mod):
    found = []
    relay.analysis.post_order_visit(
        mod["main"], lambda node: found.append(node) if isinstance(node, relay.Call) else None
    )
    return found


@pytest.mark.parametrize("filters, aligned", [(60, 64), (819, 824), (55, 56)])
def test_filters_of_zeros(filters, aligned):
    x, y = convolution(filters)
    x_ = numbers(*SHAPE).astype("float16")
    after = assert_same_numbers(AlignFilters(TARGET), module(x, relay.exp(y)), x_, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == aligned
    assert ops(after).count("strided_slice") == 1
    assert_no_second_change(AlignFilters(TARGET), after)


def test_a_slope_for_each_filter():
    slope = relay.const(np.abs(numbers(60, seed=5)))
    x, y = convolution(60, activation="prelu", slope=slope)
    x_ = numbers(*SHAPE).astype("float16")
    after = assert_same_numbers(AlignFilters(TARGET), module(x, y), x_, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == 64


@pytest.mark.parametrize("target", [None, "llvm", "cuda -arch=sm_90"])
def test_without_cudnn_nothing_changes(target):
    mod = module(*convolution())
    after, _ = apply(AlignFilters(target), mod)
    assert after.same_as(mod)


@pytest.mark.parametrize("filters", [64, 3, 9])
def test_what_gains_nothing(filters):
    mod = module(*convolution(filters))
    after, report = apply(AlignFilters(TARGET), mod)
    assert after.same_as(mod) and not refusals(report)


def test_few_channels_stay_with_the_own_kernel(monkeypatch):
    monkeypatch.undo()  # and the choice is as measured
    x = relay.var("x", shape=(1, 6, 7, 16), dtype="float16")
    mod = module(*convolution(60, x, weight=weights(60, 16)))
    after, _ = apply(AlignFilters(TARGET), mod)
    assert after.same_as(mod)


def with_residual():
    x, _ = convolution()
    more = relay.var("more", shape=(1, 6, 7, 60), dtype="float16")
    return module(x, more, convolution(x=x, residual=more)[1])


def of_variable_weights():
    weight = relay.var("weight", shape=(60, 3, 3, 128), dtype="float16")
    x, y = convolution(weight=weight)
    return module(x, weight, y)


def in_front_of_another():
    x, y = convolution()
    return module(x, convolution(64, y, weight=weights(64, 60))[1])


REFUSALS = {
    "a residual with as many channels is added": with_residual,
    "the weight is not constant": of_variable_weights,
    "the filters are shuffled into pixels": lambda: module(*convolution(60, block_size=2)),
    "another convolution reads the result, which would be copied for it": in_front_of_another,
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    mod = REFUSALS[reason]()
    after, report = apply(AlignFilters(TARGET), mod)
    assert after.same_as(mod) and refusals(report) == [reason]
