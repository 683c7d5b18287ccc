"""MergeConvolutions: structure, numbers, refusals, and nothing more the second time."""

from functools import partial

import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import AlignFilters, MergeConvolutions
from tvm_passes.engine.graph import calls_of

import tvm
from tvm import relay

TARGET = "cuda -arch=sm_90 -libs=cudnn-frontend"
SHAPE = 1, 6, 7, 16
ARRAY = numbers(*SHAPE).astype("float16")
NAME = "topi_ext.conv2d_nhwc"


def data(shape=SHAPE):
    return relay.var("x", shape=shape, dtype="float16")


def head(x, filters, seed=1, kernel=1, **options):
    channels = int(x.type_annotation.shape[3]) // options.get("groups", 1)
    weight = numbers(filters, kernel, kernel, channels, seed=seed) / 8
    options.setdefault("bias", relay.const(numbers(filters, seed=seed + 10)))
    return topi_ext.conv2d_nhwc(x, options.pop("weight", relay.const(weight.astype("float16"))), **options)


def wide(y):
    return relay.cast(y, "float32")


def returned(x, *results):
    inputs = relay.analysis.free_vars(relay.Tuple([*results]))
    return module(x, *(each for each in inputs if not each.same_as(x)), relay.Tuple([*results]))


def filters_of(mod):
    return [int(call.args[1].checked_type.shape[0]) for call in calls_of(mod, NAME)]


def heads_of_a_level(**options):
    """As those of a region proposal network: scores, and boxes in rows."""
    x = data()
    boxes = relay.reshape(wide(head(x, 12, seed=2, **options)), (-1, 4))
    return returned(x, wide(head(x, 3, **options)), boxes)


OPTIONS = {
    "plain": {},
    "without bias": {"bias": None},
    "three by three": {"kernel": 3, "padding": 1, "activation": "relu"},
    "strided": {"strides": 2, "activation": ("leaky_relu", 0.2), "final_activation": "relu"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_heads_of_the_same_data(options):
    mod = heads_of_a_level(**options)
    after = assert_same_numbers(MergeConvolutions(), mod, ARRAY, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == [15] and ops(after).count("strided_slice") == 2
    assert_no_second_change(MergeConvolutions(), after)


def test_one_of_them_has_a_bias():
    x = data()
    mod = returned(x, wide(head(x, 3)), wide(head(x, 4, seed=2, bias=None)), wide(head(x, 5, seed=3)))
    after = assert_same_numbers(MergeConvolutions(), mod, ARRAY, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == [12]


def test_each_filter_keeps_its_slope():
    x = data()
    prelus = [
        wide(head(x, count, count, activation="prelu", slope=relay.const(numbers(count)))) for count in (3, 4)
    ]
    after = assert_same_numbers(MergeConvolutions(), returned(x, *prelus), ARRAY, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == [7]


def test_results_that_are_concatenated_are_cut_there():
    x = data()
    rows = [relay.reshape(head(x, count, count), (-1, 4)) for count in (4, 8)]
    mod = module(x, relay.concatenate(rows, 0))
    after = assert_same_numbers(MergeConvolutions(), mod, ARRAY, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == [12]


def test_aligned_filters_are_cut_once(small_by_cudnn):
    x = data((1, 6, 7, 128))
    mod = returned(x, wide(head(x, 3)), wide(head(x, 12, seed=2)))
    both = tvm.transform.Sequential([MergeConvolutions(), AlignFilters(TARGET)])
    array = numbers(1, 6, 7, 128).astype("float16")
    after = assert_same_numbers(both, mod, array, rtol=2e-3, atol=2e-3)
    assert filters_of(after) == [16] and ops(after).count("strided_slice") == 2
    assert_no_second_change(AlignFilters(TARGET), after)


def test_what_differs_in_more_than_filters_stays():
    x = data()
    y = [
        head(x, 3),
        head(x, 3, kernel=3, padding=1),
        head(x, 3, activation="relu"),
        head(x, 3, strides=2),
        head(x, 3, padding=1),
        head(data(), 3),
    ]
    mod = returned(x, *map(wide, y[:-1]))
    after, report = apply(MergeConvolutions(), mod)
    assert after.same_as(mod) and not refusals(report)


def test_the_rest_is_merged():
    """One of three is read by another convolution."""
    x = data()
    inner = head(x, 8, seed=5)
    weight = relay.const(numbers(8, 1, 1, 8).astype("float16"))
    mod = returned(x, topi_ext.conv2d_nhwc(inner, weight), wide(head(x, 3)), wide(head(x, 12, seed=2)))
    after = assert_same_numbers(MergeConvolutions(), mod, ARRAY, rtol=2e-3, atol=2e-3)
    assert sorted(filters_of(after)) == [8, 8, 15]


def two(make, read=wide):
    x = data()
    return returned(x, read(make(x, 1)), read(make(x, 2)))


def with_residual():
    return two(lambda x, seed: head(x, SHAPE[3], seed, residual=x))


def of_variable(name, *shape, dtype="float16"):
    return lambda x, seed: head(x, 4, seed, **{name: relay.var(f"{name}{seed}", shape=shape, dtype=dtype)})


def read_twice(y):
    return relay.Tuple([relay.exp(y), relay.nn.softmax(relay.sqrt(y))])


REFUSALS = {
    "the convolution is grouped": [lambda: two(lambda x, seed: head(x, SHAPE[3], seed, groups=SHAPE[3]))],
    "the filters are shuffled into pixels": [lambda: two(lambda x, seed: head(x, 4, seed, block_size=2))],
    "a residual with as many channels is added": [with_residual],
    "the weight is not constant": [lambda: two(of_variable("weight", 4, 1, 1, SHAPE[3]))],
    "the bias is not constant": [lambda: two(of_variable("bias", 4))],
    "the result would be copied for what reads it": [
        partial(two, lambda x, seed: head(x, 4, seed), read)
        for read in (lambda y: y, lambda y: relay.sum(y, 3), relay.nn.softmax, read_twice)
    ],
}


@pytest.mark.parametrize("reason, make", [(reason, make) for reason in REFUSALS for make in REFUSALS[reason]])
def test_refusals(reason, make):
    mod = make()
    after, report = apply(MergeConvolutions(), mod)
    assert after.same_as(mod) and set(refusals(report)) == {reason}
