"""MergeNMSOfImages: structure, the same detections, refusals, and nothing more the second time."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, ops, refusals, run
from tests.ops.detections import clustered_detections
from tvm_passes import Canonicalize, MergeNMSOfImages, SpareKernels
from tvm_passes.engine.graph import calls_of

import tvm
from tvm import relay

N = 60
NAME = "topi_ext.batched_nms"
EXACTLY = {"rtol": 0, "atol": 0}
MERGE = tvm.transform.Sequential([MergeNMSOfImages(), Canonicalize()])


class Image:
    """The inputs of a graph that come from one image, and arrays for them."""

    def __init__(self, number, n=N, dtype="float32"):
        self.arrays = clustered_detections(n, 3, seed=number, dtype=dtype)
        shapes = {"boxes": (n, 4), "scores": (n,), "ids": (n,)}
        self.inputs = [
            relay.var(f"{name}{number}", shape=shape, dtype=str(array.dtype))
            for (name, shape), array in zip(shapes.items(), self.arrays)
        ]

    def nms(self, iou_threshold=0.5, boxes=None, **options):
        own, scores, ids = self.inputs
        return topi_ext.batched_nms(own if boxes is None else boxes, scores, ids, iou_threshold, **options)


def images(count, **options):
    return [Image(number, **options) for number in range(count)]


def fields(*results):
    return [relay.TupleGetItem(result, index) for result in results for index in range(2)]


def of_images(images, *results):
    """A module that returns the indices and the count of each NMS."""
    return module(*(each for image in images for each in image.inputs), relay.Tuple(fields(*results)))


def arrays_of(images):
    return [array for image in images for array in image.arrays]


def batches_of(mod):
    """The number of images in each NMS; None for one without an axis of images."""
    types = [call.args[0].checked_type for call in calls_of(relay.transform.InferType()(mod), NAME)]
    return [int(type_.shape[0]) if len(type_.shape) == 3 else None for type_ in types]


OPTIONS = {
    "plain": {},
    "first ones": {"max_output_size": 7, "score_threshold": 0.3},
    "more than there are": {"max_output_size": N + 9},
    "as an expression": {"iou_threshold": relay.sqrt(relay.const(0.25))},
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_images_are_merged(count, options):
    given = images(count)
    mod = of_images(given, *(image.nms(**options) for image in given))
    after = assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [count]
    assert_no_second_change(MERGE, after)


@pytest.mark.parametrize("n", [0, 1])
def test_few_boxes(n):
    given = images(2, n=n)
    mod = of_images(given, *(image.nms() for image in given))
    assert batches_of(assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)) == [2]


def test_half_precision():
    given = images(2, dtype="float16")
    mod = of_images(given, *(image.nms() for image in given))
    assert batches_of(assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)) == [2]


def test_each_image_has_its_own_number_of_valid_boxes():
    given, valid = images(3), [relay.const(number, "int32") for number in (40, 0, N)]
    results = [image.nms(valid_count=count) for image, count in zip(given, valid)]
    after = assert_same_numbers(MERGE, of_images(given, *results), *arrays_of(given), **EXACTLY)
    (merged,) = calls_of(relay.transform.InferType()(after), NAME)
    assert [int(length) for length in merged.args[3].checked_type.shape] == [3]


def test_a_threshold_that_is_computed_for_each_image_in_the_same_way():
    given, factor = images(2), relay.var("factor", shape=())
    results = [image.nms(relay.multiply(factor, relay.const(0.5))) for image in given]
    inputs = [each for image in given for each in image.inputs]
    mod = module(factor, *inputs, relay.Tuple(fields(*results)))
    after = assert_same_numbers(MERGE, mod, np.float32(0.9), *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [2]


def test_the_split_of_a_batch_is_undone():
    parts = [array for array in arrays_of(images(2))]
    arrays = [np.stack([parts[place], parts[place + 3]]) for place in range(3)]
    batch = [relay.var(f"x{place}", shape=x.shape, dtype=str(x.dtype)) for place, x in enumerate(arrays)]
    split = [relay.split(each, 2) for each in batch]
    results = [
        topi_ext.batched_nms(*(relay.squeeze(each[image], [0]) for each in split), 0.5) for image in range(2)
    ]
    mod = module(*batch, relay.Tuple(fields(*results)))
    passes = tvm.transform.Sequential([MERGE, SpareKernels()])
    after = assert_same_numbers(passes, mod, *arrays, **EXACTLY)
    assert ops(after) == [NAME] + ["take"] * 4


def second(image, first):
    """An NMS of the boxes that a first one has kept, in the order of their scores."""
    kept = relay.maximum(relay.TupleGetItem(first, 0), relay.const(0, "int64"))
    return image.nms(0.3, boxes=relay.take(image.inputs[0], kept, axis=0))


def test_each_stage_is_merged_with_its_like():
    given = images(3)
    firsts = [image.nms() for image in given]
    results = [second(image, first) for image, first in zip(given, firsts)]
    after = assert_same_numbers(MERGE, of_images(given, *results), *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [3, 3]


def test_an_nms_is_not_merged_with_one_that_it_depends_on():
    given = images(2)
    first = given[0].nms(0.3)
    mod = of_images(given, first, second(given[0], first), given[1].nms(0.3))
    after = assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [2, None]


@pytest.mark.parametrize("with_a_third", [False, True])
def test_merged_ones_do_not_depend_on_each_other_in_a_cycle(with_a_third):
    """Two kinds, few boxes and many: many of image 0 depend on few, and few of image 1 on many."""
    few, many = images(2, n=20), [Image(number + 2, n=30) for number in range(2)]

    def behind(image, first):
        offset = relay.cast(relay.TupleGetItem(first, 1), "float32")
        return image.nms(boxes=relay.add(image.inputs[0], offset))

    leading = [few[0].nms(), many[1].nms()]
    following = [behind(many[0], leading[0]), behind(few[1], leading[1])]
    third = [Image(4, n=20)] if with_a_third else []
    given = few + many + third
    mod = of_images(given, *leading, *following, *(image.nms() for image in third))
    after = assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)
    assert sorted(batches_of(after), key=str) == ([2] + [None] * 3 if with_a_third else [None] * 4)


# --- scopes


def in_branch(given, then, otherwise):
    condition = relay.var("condition", shape=(), dtype="bool")
    inputs = [each for image in given for each in image.inputs]
    branches = (relay.Tuple(fields(*results)) for results in (then, otherwise))
    return module(condition, *inputs, relay.If(condition, *branches))


def test_an_nms_stays_in_its_branch():
    given = images(2)
    mod = in_branch(given, [given[0].nms()], [given[1].nms()])
    after, report = apply(MergeNMSOfImages(), mod)
    assert after.same_as(mod) and not refusals(report)


@pytest.mark.parametrize("condition", [False, True])
def test_those_of_a_branch_are_merged_there(condition):
    given = images(4)
    results = [image.nms() for image in given]
    mod = in_branch(given, results[:2], results[2:])
    after = assert_same_numbers(MERGE, mod, np.array(condition), *arrays_of(given), **EXACTLY)
    branches = after["main"].body
    assert [ops_below(each).count(NAME) for each in (branches.true_branch, branches.false_branch)] == [1, 1]


def ops_below(expr):
    return ops(tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(expr), expr)))


def test_those_that_both_branches_use_are_merged():
    given = images(2)
    results = [image.nms() for image in given]
    mod = in_branch(given, results, results[::-1])
    after = assert_same_numbers(MERGE, mod, np.array(True), *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [2]


def test_variables_stay_in_their_scope():
    """The boxes of each image but the first are a variable of another scope: two lets, and a function."""
    given = images(4)
    outer, inner, parameter = (relay.var(name, shape=(N, 4)) for name in ("outer", "inner", "parameter"))
    double = [relay.multiply(image.inputs[0], relay.const(2.0)) for image in given]
    of_inner = relay.Let(inner, double[2], relay.Tuple(fields(given[2].nms(boxes=inner))))
    in_let = relay.Tuple([*fields(given[1].nms(boxes=outer)), of_inner])
    closure = relay.Function([parameter], relay.Tuple(fields(given[3].nms(boxes=parameter))))
    results = relay.Tuple([*fields(given[0].nms()), relay.Let(outer, double[1], in_let), closure(double[3])])
    mod = module(*(each for image in given for each in image.inputs), results)
    after, report = apply(MergeNMSOfImages(), mod)
    assert after.same_as(mod) and not refusals(report)


def test_those_of_a_let_are_merged_there():
    given, factor = images(2), relay.var("factor", shape=())
    results = [image.nms(boxes=relay.multiply(image.inputs[0], factor)) for image in given]
    body = relay.Let(factor, relay.sqrt(relay.const(4.0)), relay.Tuple(fields(*results)))
    mod = module(*(each for image in given for each in image.inputs), body)
    after = assert_same_numbers(MERGE, mod, *arrays_of(given), **EXACTLY)
    assert batches_of(after) == [2]


# --- what stays


def test_those_that_have_an_axis_of_images_stay():
    parts = [relay.var(name, shape=(2, N, *rest), dtype=dtype) for name, rest, dtype in BATCH]
    mod = module(*parts, relay.Tuple(fields(*(topi_ext.batched_nms(*parts, 0.5) for _ in range(2)))))
    after, report = apply(MergeNMSOfImages(), mod)
    assert after.same_as(mod) and not refusals(report)


BATCH = ("boxes", (4,), "float32"), ("scores", (), "float32"), ("ids", (), "int64")


def differing(*options):
    given = images(len(options))
    return of_images(given, *(image.nms(**each) for image, each in zip(given, options)))


def of_sizes(*sizes):
    given = [Image(number, n=n) for number, n in enumerate(sizes)]
    return of_images(given, *(image.nms() for image in given))


def of_a_number_at_run_time():
    inputs = [
        [relay.var(f"{name}{i}", shape=(relay.Any(), *rest), dtype=dtype) for name, rest, dtype in BATCH]
        for i in range(2)
    ]
    results = [topi_ext.batched_nms(*each, 0.5) for each in inputs]
    return module(*inputs[0], *inputs[1], relay.Tuple(fields(*results)))


REFUSALS = {
    "the number of boxes is known only at run time": [of_a_number_at_run_time],
    "no NMS beside it has the same attributes": [
        lambda: differing({}, {"max_output_size": 7}),
        lambda: differing({}, {"score_threshold": 0.1}),
        lambda: differing({}, {"valid_count": relay.const(7, "int32")}),
    ],
    "no NMS beside it has the same types": [lambda: of_sizes(N, N + 1)],
    "no NMS beside it has the same thresholds": [
        lambda: differing({"iou_threshold": 0.5}, {"iou_threshold": 0.6}),
        lambda: differing({"score_threshold": 0.1}, {"score_threshold": 0.2}),
        lambda: differing({"iou_threshold": 0.5}, {"iou_threshold": relay.sqrt(relay.const(0.25))}),
    ],
}


@pytest.mark.parametrize("reason, make", [(reason, make) for reason in REFUSALS for make in REFUSALS[reason]])
def test_refusals(reason, make):
    mod = make()
    after, report = apply(MergeNMSOfImages(), mod)
    assert after.same_as(mod) and refusals(report) == [reason] * 2


def test_the_rest_is_merged():
    mod = differing({"iou_threshold": 0.5}, {"iou_threshold": 0.6}, {"iou_threshold": 0.5})
    after = assert_same_numbers(MERGE, mod, *arrays_of(images(3)), **EXACTLY)
    assert sorted(batches_of(after), key=str) == [2, None]


def test_on_the_emulated_device(emulated_cuda):
    given = images(3)
    mod = of_images(given, *(image.nms(max_output_size=9) for image in given))
    after, _ = apply(MERGE, mod)
    found, expected = emulated_cuda.run_relay(after, *arrays_of(given)), run(mod, *arrays_of(given))
    for array, wanted in zip(found, expected):
        np.testing.assert_array_equal(array, wanted)
