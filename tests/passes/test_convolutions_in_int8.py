"""What the passes on convolutions make of one in int8, which has scales and a result of another type."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import (
    AlignFilters,
    FuseConv2dNHWC,
    InMixedPrecision,
    MergeConvolutions,
    SelectBeforeConvolution,
)
from tvm_passes.engine.graph import calls_of

from tvm import relay

SHAPE = 1, 6, 7, 16
NAME = "topi_ext.conv2d_nhwc"
ARRAY = np.random.default_rng(0).integers(-128, 128, SHAPE).astype("int8")


def data():
    return relay.var("x", shape=SHAPE, dtype="int8")


def head(x, filters, seed=1, **options):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-128, 128, (filters, 1, 1, SHAPE[-1])).astype("int8")
    scale = rng.uniform(0.5, 1.5, filters).astype("float32") / 2e4
    options = {"out_dtype": "int8", "out_scale": 50, "bias": relay.const(numbers(filters)), **options}
    return topi_ext.conv2d_nhwc(x, relay.const(weight), scale=relay.const(scale), **options)


def test_nothing_is_folded_in_behind_the_rounding():
    x = data()
    mod = module(x, relay.nn.relu(head(x, 8)))
    after, report = apply(FuseConv2dNHWC(), mod)
    assert ops(after) == ops(mod)
    assert refusals(report) == ["the convolution has scaled and rounded its result to int8"]


def test_what_follows_a_float_result_is_folded_in():
    x = data()
    options = {"out_dtype": "float32", "out_scale": 1.0, "bias": None}
    bias = relay.const(numbers(8))
    mod = module(x, relay.nn.relu(head(x, 8, **options) + bias))
    after = assert_same_numbers(FuseConv2dNHWC(also_float32=True), mod, ARRAY)
    assert ops(after) == [NAME]


def test_heads_of_the_same_data_are_merged_with_their_scales():
    x = data()
    results = [relay.cast(head(x, filters, seed=filters), "float32") for filters in (3, 12)]
    mod = module(x, relay.Tuple(results))
    after = assert_same_numbers(MergeConvolutions(), mod, ARRAY)
    (merged,) = calls_of(after, NAME)
    assert merged.checked_type.concrete_shape[3] == 15


@pytest.mark.parametrize("options", [{"out_scale": 40}, {"out_dtype": "float32", "out_scale": 1}])
def test_heads_of_other_scales_are_not_merged(options):
    x = data()
    results = [relay.cast(each, "float32") for each in (head(x, 3), head(x, 12, **options))]
    mod = module(x, relay.Tuple(results))
    assert apply(MergeConvolutions(), mod)[0].same_as(mod)


def test_filters_are_aligned_to_sixteen(small_by_cudnn):
    x = data()
    mod = module(x, relay.cast(head(x, 56), "float32"))
    after = assert_same_numbers(AlignFilters("cuda -arch=sm_90 -libs=cudnn-frontend"), mod, ARRAY)
    (call,) = calls_of(after, NAME)
    assert call.checked_type.concrete_shape[3] == 64


def test_in_mixed_precision_a_float_result_is_in_half():
    """As that of a convolution in float is; a result in int8 stays."""
    x = data()
    mod = module(x, relay.exp(head(x, 8, out_dtype="float32", out_scale=1.0)))
    after, _ = apply(InMixedPrecision(), mod)
    (call,) = calls_of(after, NAME)
    assert ops(after) == [NAME, "cast", "exp"] and call.checked_type.dtype == "float16"
    mod = module(x, head(x, 8))
    assert ops(apply(InMixedPrecision(), mod)[0]) == ops(mod)


def test_filters_are_not_selected_before_it():
    x, filters = data(), relay.var("filters", shape=(1,), dtype="int64")
    y = relay.layout_transform(head(x, 8), "NHWC", "NCHW")
    mod = module(x, filters, relay.adv_index([y, relay.const(np.zeros(1, "int64")), filters]))
    _, report = apply(SelectBeforeConvolution(), mod)
    assert refusals(report) == ["the convolution is in int8, or its result is"]
