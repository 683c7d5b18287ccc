"""SpareKernels: structure, numbers, refusals, and nothing more the second time."""

import json

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, numbers, ops, refusals
from tvm_passes import SpareKernels, runtime
from tvm_passes.runtime.concurrency import steps_of

from tvm import relay

LEVELS = {"fine": 12, "coarse": 6, "coarsest": 2}


def levels():
    return [relay.var(name, shape=(1, count, 1)) for name, count in LEVELS.items()]


def of_levels(cuts=(12, 18), shape=(1, -1), axis=1, of=levels, parts_axis=1):
    """The tensors of all levels in one, which is split."""
    inputs = of()
    whole = relay.reshape(relay.concatenate(inputs, parts_axis), shape)
    parts = relay.split(whole, list(cuts), axis=axis)
    best = [relay.topk(part, k=1, axis=axis, ret_type="values") for part in parts]
    return module(*inputs, relay.Tuple(best))


def steps(mod):
    return len(steps_of(json.loads(runtime.build_library(mod, "llvm").graph_json)))


ARRAYS = [numbers(1, count, 1, seed=count) for count in LEVELS.values()]


@pytest.mark.parametrize("options", [{}, {"shape": (-1, 1), "axis": 0}, {"shape": (20,), "axis": 0}])
def test_parts_are_the_tensors_that_were_concatenated(options):
    mod = of_levels(**options)
    after = assert_same_numbers(SpareKernels(), mod, *ARRAYS)
    assert not {"split", "concatenate"} & set(ops(after))
    assert steps(after) < steps(mod)
    assert_no_second_change(SpareKernels(), after)


def test_parts_that_were_put_together_elsewhere_stay():
    mod = of_levels(cuts=(12, 17))  # the first one is a level
    after, report = apply(SpareKernels(), mod)
    reason = "it is cut at other places than those where it was put together"
    assert refusals(report) == [reason] * 2
    assert ops(after).count("topk") == 3 and ops(after).count("split") == 1
    assert_same_numbers(SpareKernels(), mod, *ARRAYS)


def columns():
    return [relay.var(name, shape=(2, count)) for name, count in LEVELS.items()]


def test_columns_are_not_one_behind_the_other():
    mod = of_levels(of=columns, cuts=(24, 36))
    after, report = apply(SpareKernels(), mod)
    assert after.same_as(mod)
    assert set(refusals(report)) == {"the parts are not one behind the other in memory"}


def test_rows_split_along_another_axis_stay():
    def rows():
        return [relay.var(name, shape=(count, 2)) for name, count in (("a", 2), ("b", 2))]

    mod = of_levels(of=rows, parts_axis=0, shape=(2, 4), cuts=(2,))
    after, report = apply(SpareKernels(), mod)
    assert after.same_as(mod) and refusals(report)


def taken(bound=0, mode="clip", operator=relay.maximum, dtype="int64"):
    x, index = relay.var("x", shape=(4, 2)), relay.var("index", shape=(3,), dtype=dtype)
    return module(x, index, relay.take(x, operator(index, relay.const(bound, dtype)), axis=0, mode=mode))


@pytest.mark.parametrize("bound", [0, -3])
def test_clipping_indices_is_left_to_take(bound):
    arrays = numbers(4, 2), np.array([-2, 3, 9])
    after = assert_same_numbers(SpareKernels(), taken(bound), *arrays)
    assert ops(after) == ["take"]
    assert_no_second_change(SpareKernels(), after)


@pytest.mark.parametrize("mod", [taken(bound=1), taken(mode="wrap"), taken(operator=relay.minimum)])
def test_other_bounds_stay(mod):
    after, _ = apply(SpareKernels(), mod)
    assert after.same_as(mod)


def test_a_shape_that_is_changed_back():
    x = relay.var("x", shape=(3, 1, 2))
    y = relay.expand_dims(relay.squeeze(relay.reshape(x, (1, 6)), [0]), 1)
    y = relay.reshape(y, (3, 1, 2))
    after = assert_same_numbers(SpareKernels(), module(x, relay.exp(y)), numbers(3, 1, 2))
    assert ops(after) == ["exp"]
    assert_no_second_change(SpareKernels(), after)


def test_another_shape_stays():
    x = relay.var("x", shape=(3, 1, 2))
    mod = module(x, relay.reshape(relay.squeeze(x, [1]), (2, 3)))
    after, _ = apply(SpareKernels(), mod)
    assert after.same_as(mod)


def pooled(index, boxes_first=False):
    feature, boxes = relay.var("feature", shape=(2, 4, 8, 8)), relay.var("boxes", shape=(3, 4))
    parts = [index(boxes), boxes]
    rois = relay.concatenate(parts[::-1] if boxes_first else parts, axis=1)
    options = {"pooled_size": 2, "scales": [0.5], "sampling_ratio": 2}
    return module(feature, boxes, topi_ext.multiscale_roi_align([feature], rois, **options))


def first_column(boxes):
    return relay.strided_slice(boxes, [0], [1], axes=[1])


ZEROS = {
    "full_like": lambda boxes: relay.full_like(first_column(boxes), relay.const(0.0)),
    "zeros_like": lambda boxes: relay.zeros_like(first_column(boxes)),
    "full": lambda boxes: relay.full(relay.const(0.0), (3, 1)),
    "zeros": lambda boxes: relay.zeros((3, 1), "float32"),
    "constant": lambda boxes: relay.const(np.zeros((3, 1), "float32")),
}


@pytest.mark.parametrize("zeros", ZEROS)
def test_regions_of_the_first_image_need_no_index(zeros):
    boxes = np.sort(np.abs(numbers(3, 2, 2)) * 8, axis=1).reshape(3, 4).astype("float32")
    after = assert_same_numbers(SpareKernels(), pooled(ZEROS[zeros]), numbers(2, 4, 8, 8), boxes)
    assert ops(after) == ["topi_ext.multiscale_roi_align"]
    assert_no_second_change(SpareKernels(), after)


OTHERS = {
    "the second image": pooled(lambda boxes: relay.const(np.ones((3, 1), "float32"))),
    "a computed index": pooled(first_column),
    "some of each": pooled(lambda boxes: relay.const(np.float32([[0], [1], [0]]))),
    "behind the boxes": pooled(ZEROS["zeros"], boxes_first=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_regions_stay(name):
    after, _ = apply(SpareKernels(), OTHERS[name])
    assert after.same_as(OTHERS[name])


def plus_zeros(dtype="int64", zeros=relay.zeros_like, shape=(4, 3)):
    x = relay.var("x", shape=shape)
    ids = relay.const(np.arange(3).astype(dtype)[None], dtype)
    return module(x, ids + relay.cast(zeros(x), dtype))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_constants_expanded_as_another_tensor(dtype):
    after = assert_same_numbers(SpareKernels(), plus_zeros(dtype), numbers(4, 3))
    assert ops(after) == [] and isinstance(after["main"].body, relay.Constant)
    assert_no_second_change(SpareKernels(), after)


@pytest.mark.parametrize(
    "mod",
    [plus_zeros("float32"), plus_zeros(zeros=relay.ones_like), plus_zeros(shape=(relay.Any(), 3))],
    ids=["negative zeros differ", "ones", "dynamic"],
)
def test_other_sums_stay(mod):
    after, _ = apply(SpareKernels(), mod)
    assert ops(after) == ops(mod)
