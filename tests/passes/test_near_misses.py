"""Graphs that nearly fit a rule, each of which a rewrite once got wrong."""

import numpy as np
import pytest

from tests.helpers import apply, assert_same_numbers, module, numbers, ops, refusals, run
from tvm_passes import Canonicalize, RestoreDepthToSpace, detection_pipeline

import tvm
from tvm import relay
from tvm.relay import op

ANY = relay.Any()


def vector(*values):
    return relay.const(np.array(values, "int64"), "int64")


def variable(*shape, name="x"):
    return relay.var(name, shape=shape)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_a_negative_index_is_clipped_or_wrapped(mode):
    taken = relay.take(vector(5, 6, 7), relay.const(np.int64(-1), "int64"), axis=0, mode=mode)
    assert_same_numbers(Canonicalize(), module(taken))


@pytest.mark.parametrize(
    "shape, taken", [((3,), lambda x, rows: relay.adv_index([x, rows])), ((1, 3), relay.gather_nd)]
)
@pytest.mark.parametrize("length", [4, ANY])
def test_rows_that_count_from_the_end(shape, taken, length):
    x, rows = variable(length, 3), relay.var("rows", shape=shape, dtype="int64")
    given = np.array([0, -1, -4]).reshape(shape)
    after = assert_same_numbers(Canonicalize(), module(x, rows, taken(x, rows)), numbers(4, 3), given)
    assert "take" in ops(after)


@pytest.mark.parametrize("added, mode", [(4, "clip"), (3, "wrap")])
def test_rows_that_an_importer_counts_from_the_start(added, mode):
    x, rows = variable(4, 3), relay.var("rows", shape=(3,), dtype="int64")
    zero, more = relay.const(np.int64(0), "int64"), relay.const(np.int64(added), "int64")
    mod = module(x, rows, relay.adv_index([x, relay.where(rows < zero, rows + more, rows)]))
    after = assert_same_numbers(Canonicalize(), mod, numbers(4, 3), np.array([0, -1, -4]))
    assert after["main"].body.attrs.mode == mode


def test_a_dimension_does_not_survive_a_narrow_type():
    x = variable(ANY)
    narrow = relay.cast(relay.cast(op.shape_of(x, "int64"), "int8"), "int64")
    mod = module(x, relay.strided_slice(x, vector(0), narrow, vector(1)))
    assert_same_numbers(Canonicalize(), mod, numbers(257))


def test_a_split_that_moves_columns_into_rows_is_no_unshuffle():
    x = variable(1, 1, 2, 8)
    moved = relay.transpose(relay.reshape(x, (1, 1, 2, 2, 2, 2)), (0, 1, 3, 5, 2, 4))
    mod = module(x, relay.reshape(moved, (1, 4, 2, 2)))
    assert apply(RestoreDepthToSpace(), mod)[0].same_as(mod)


def test_zero_is_a_dimension_where_the_reshape_says_so():
    x = variable(3, 0)
    dynamic = relay.reshape(x, relay.var("shape", shape=(2,), dtype="int64"), allowzero=True)
    mod = module(x, relay.Call(dynamic.op, [x, vector(0, 5)], dynamic.attrs))
    assert_same_numbers(Canonicalize(), mod, numbers(3, 0))


@pytest.mark.parametrize("end", [2**63 - 1, 10**12])
def test_an_end_past_int32_is_the_end(end):
    x = variable(ANY)
    dynamic = relay.strided_slice(x, *(relay.var(n, shape=(1,), dtype="int64") for n in "bes"))
    mod = module(x, relay.Call(dynamic.op, [x, vector(0), vector(end), vector(1)], dynamic.attrs))
    after = assert_same_numbers(Canonicalize(), mod, numbers(5))
    assert ops(after) == []


def test_constant_bounds_on_an_axis_of_unknown_length_stay_dynamic():
    x, y = variable(ANY, 4), variable(ANY, 1, name="y")
    dynamic = relay.strided_slice(x, *(relay.var(n, shape=(2,), dtype="int64") for n in "bes"))
    bounds = [vector(1, 0), vector(4, 4), vector(1, 1)]
    mod = module(x, y, relay.divide(relay.Call(dynamic.op, [x, *bounds], dynamic.attrs), y))
    assert_same_numbers(Canonicalize(), mod, numbers(6, 4), numbers(3, 1))


def test_a_function_that_others_call_keeps_its_type():
    z, x = variable(4, name="z"), variable(4)
    name = relay.GlobalVar("callee")
    call = relay.Call(name, [x])
    mod = tvm.IRModule({name: relay.Function([z], relay.exp(relay.reshape(z, (4,))), relay.TensorType((4,)))})
    mod["main"] = relay.Function([x], relay.exp(relay.reshape(call, (4,))))
    assert ops(assert_same_numbers(Canonicalize(), mod, numbers(4))) == ["exp"]


def test_a_composite_of_a_backend_is_left_alone():
    x, y = variable(4), variable(4, name="y")
    composite = relay.Function([y], relay.reshape(relay.exp(y), (4,))).with_attr("Composite", "my.op")
    mod = module(x, relay.Call(composite, [x]))
    assert apply(Canonicalize(), mod)[0].same_as(mod)


def test_a_long_chain_of_dynamic_reshapes():
    x = y = variable(3, 4)
    for _ in range(12):
        y = relay.exp(relay.reshape(y, op.shape_of(y, "int64")))
    assert set(ops(apply(Canonicalize(), module(x, y))[0])) == {"exp"}


def onnx_nms(boxes, scores, most, iou_threshold=0.5):
    result = op.vision.all_class_non_max_suppression(boxes, scores, most, iou_threshold, 0.0)
    rows = relay.strided_slice(result[0], vector(0), result[1], vector(1))
    return relay.take(rows, relay.const(np.int64(2), "int64"), axis=1)


@pytest.mark.parametrize("most, kept", [(9, [0, 2]), (1, [0]), (0, [0, 2]), (-1, [0, 2])])
def test_corners_come_in_any_order_and_no_more_than_0_boxes_are_all_as_in_tvm(most, kept):
    boxes = np.array([[[0, 0, 10, 10], [10, 10, 0, 0], [50, 50, 60, 60]]], "float32")
    scores = np.array([[[0.9, 0.8, 0.7]]], "float32")
    b, s = relay.var("b", shape=(1, 3, 4)), relay.var("s", shape=(1, 1, 3))
    mod = module(b, s, onnx_nms(b, s, most))
    after, _ = apply(detection_pipeline(), mod)
    assert "topi_ext.batched_nms" in ops(after)
    for each in (mod, after):
        assert run(each, boxes, scores)[0].tolist() == kept


@pytest.mark.parametrize("at", [np.nextafter(np.float32(0.5), np.float32(0)), np.float32(0.5)])
@pytest.mark.parametrize("known", [True, False])
def test_a_box_of_an_iou_equal_to_the_threshold(at, known):
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 1]]], "float32")  # their IoU is 0.5
    scores = np.array([[[0.9, 0.8]]], "float32")
    for threshold in (at, np.nextafter(at, np.float32(1))):
        b, s = relay.var("b", shape=(1, 2, 4)), relay.var("s", shape=(1, 1, 2))
        t = relay.const(threshold) if known else relay.var("t", shape=())
        mod = module(b, s, *([] if known else [t]), onnx_nms(b, s, 9, t))
        after, _ = apply(detection_pipeline(), mod)
        assert "vision.all_class_non_max_suppression" not in ops(after)
        for each in (mod, after):
            found = run(each, boxes, scores, *([] if known else [threshold]))[0]
            assert found.tolist() == ([0] if threshold <= 0.5 else [0, 1])


@pytest.mark.parametrize("threshold", [0.0, -1.0])
def test_nothing_is_kept_at_a_threshold_of_0(threshold):
    boxes, scores = np.array([[[0, 0, 2, 2], [5, 5, 6, 6]]], "float32"), np.array([[[0.9, 0.8]]], "float32")
    b, s, t = relay.var("b", shape=(1, 2, 4)), relay.var("s", shape=(1, 1, 2)), relay.var("t", shape=())
    _, report = apply(detection_pipeline(), module(b, s, onnx_nms(b, s, 9, relay.const(threshold))))
    assert any("keeps nothing at an IoU threshold" in reason for reason in refusals(report))
    mod = module(b, s, t, onnx_nms(b, s, 9, t))
    after, _ = apply(detection_pipeline(), mod)
    assert "topi_ext.batched_nms" in ops(after)
    for each in (mod, after):
        assert run(each, boxes, scores, np.float32(threshold))[0].tolist() == []


def test_boxes_of_five_columns_are_refused():
    b, s = relay.var("b", shape=(1, 3, 5)), relay.var("s", shape=(1, 1, 3))
    try:
        mod = relay.transform.InferType()(module(b, s, onnx_nms(b, s, 9)))
    except tvm.TVMError:
        pytest.skip("this TVM does not take them either")
    assert "topi_ext.batched_nms" not in ops(apply(detection_pipeline(), mod)[0])
