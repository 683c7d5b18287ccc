"""LowerClassAwareNMS: against what TVM's own NMS answers, to the same boxes in the same order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import apply, assert_no_second_change, module, ops, refusals, run
from tvm_passes import LowerClassAwareNMS, detection_pipeline
from tvm_passes.detection.stock_nms import JUST_BELOW_1
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay
from tvm.relay.op import vision

ANY = relay.Any()
BOXES = 20


def float32(value):
    return relay.const(np.float32(value), "float32")


def random_boxes(rng, *shape):
    """Small whole corners in any order: many an IoU is 1/2, 1/3 or 1/4, and some boxes have no area."""
    return rng.integers(0, 6, (*shape, 4)).astype("float32")


def random_scores(rng, *shape):
    """Few values, so that many tie."""
    return rng.integers(1, 9, shape).astype("float32") / 8


def after(mod, passes=None):
    changed, report = apply(passes or LowerClassAwareNMS(), mod)
    assert refusals(report) == []
    assert "topi_ext.batched_nms" in ops(changed) and not any(
        name.startswith("vision") for name in ops(changed)
    )
    return changed


def reasons(mod):
    changed, report = apply(LowerClassAwareNMS(), mod)
    assert changed.same_as(mod)
    return refusals(report)


def nms_call(mod):
    (call,) = [node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.batched_nms"]
    return call


class TestAllClasses:
    """Of `vision.all_class_non_max_suppression`."""

    def mod(self, shape=(2, 3, BOXES), most=0, iou=0.5, score=0.0, dtype="float32", whole=False, **options):
        images, _, count = shape
        boxes = relay.var("boxes", shape=(images, count, 4), dtype=dtype)
        scores = relay.var("scores", shape=shape, dtype=dtype)
        extra = [value for value in (most, iou, score) if isinstance(value, relay.Var)]
        most = most if isinstance(most, relay.Expr) else relay.const(most, "int64")
        iou, score = (value if isinstance(value, relay.Expr) else float32(value) for value in (iou, score))
        result = vision.all_class_non_max_suppression(boxes, scores, most, iou, score, **options)
        if whole:
            return module(boxes, scores, *extra, result.astuple())
        rows = relay.strided_slice(result[0], relay.const([0], "int64"), result[1])
        return module(boxes, scores, *extra, rows)

    def arrays(self, seed, images=2, classes=3, count=BOXES):
        rng = np.random.default_rng(seed)
        return random_boxes(rng, images, count), random_scores(rng, images, classes, count)

    def test_structure(self):
        changed = after(self.mod(whole=True))
        assert changed["main"].ret_type == relay.transform.InferType()(self.mod(whole=True))["main"].ret_type
        call = nms_call(changed)
        assert [int(dim) for dim in call.args[0].checked_type.shape] == [6, BOXES, 4]
        assert call.args[4].data.numpy() == np.nextafter(np.float32(0.5), np.float32(0))
        assert not {"scatter_nd", "scatter_elements", "argsort"} & set(ops(changed))

    @pytest.mark.parametrize(
        "shape, most",
        [
            ((1, 1, BOXES), 0),
            ((1, 5, BOXES), 1),
            ((3, 1, BOXES), 3),
            ((2, 3, BOXES), 1000),
            ((2, 3, BOXES), 2**63 - 1),
            ((2, 3, 1), -1),
        ],
    )
    def test_numbers(self, shape, most):
        mod = self.mod(shape, most, iou=0.5, score=0.25)
        compute, compute_after = compiled(mod), compiled(after(mod))
        for seed in range(3):
            arrays = self.arrays(seed, *shape)
            np.testing.assert_array_equal(compute_after(*arrays)[0], compute(*arrays)[0])

    def test_many_seeds(self):
        thresholds = [relay.var(name, shape=()) for name in ("iou", "score")]
        most = relay.var("most", shape=(), dtype="int64")
        mod = self.mod(most=most, iou=thresholds[0], score=thresholds[1])
        compute, compute_after = compiled(mod), compiled(after(mod))
        rng = np.random.default_rng(0)
        for seed in range(200):
            limits = [
                np.float32(rng.choice([1 / 2, 1 / 3, 1 / 4, 1, 1e-30])),
                np.float32(rng.choice([0, 0.5, 2])),
            ]
            arrays = *self.arrays(seed), np.int64(rng.choice([0, 1, 2, 100])), *limits
            np.testing.assert_array_equal(compute_after(*arrays)[0], compute(*arrays)[0])

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_any_boxes(self, data):
        compute, compute_after = self.hypothesis_pair()
        boxes = data.draw(st.lists(st.integers(-2, 3), min_size=20, max_size=20))
        scores = data.draw(st.lists(st.sampled_from([0.125, 0.25, 0.5, np.inf]), min_size=10, max_size=10))
        arrays = np.array(boxes, "float32").reshape(1, 5, 4), np.array(scores, "float32").reshape(1, 2, 5)
        np.testing.assert_array_equal(compute_after(*arrays)[0], compute(*arrays)[0])

    pair = None

    def hypothesis_pair(self):
        if TestAllClasses.pair is None:
            mod = self.mod((1, 2, 5), most=3, iou=1 / 3, score=0.125)
            TestAllClasses.pair = compiled(mod), compiled(after(mod))
        return TestAllClasses.pair

    def test_float_coordinates(self):
        rng = np.random.default_rng(0)
        boxes, scores = rng.random((2, 200, 4), "float32"), rng.random((2, 4, 200), "float32")
        mod = self.mod((2, 4, 200), iou=0.3)
        np.testing.assert_array_equal(run(after(mod), boxes, scores)[0], run(mod, boxes, scores)[0])

    @pytest.mark.parametrize("iou", [0.0, -1.0])
    def test_nothing_is_kept_at_a_threshold_of_0_that_is_known_at_run_time(self, iou):
        mod = self.mod(iou=relay.var("iou", shape=()))
        for each in (mod, after(mod)):
            assert run(each, *self.arrays(0), np.float32(iou))[0].shape == (0, 3)

    def test_nothing_above_the_score_threshold(self):
        mod = self.mod(score=2.0)
        for each in (mod, after(mod)):
            assert run(each, *self.arrays(0))[0].shape == (0, 3)

    def test_the_whole_result(self):
        mod = self.mod(whole=True)
        (expected, count), (rows, count_after) = run(mod, *self.arrays(0)), run(after(mod), *self.arrays(0))
        assert (rows.dtype, rows.shape, count_after.tolist()) == (
            expected.dtype,
            expected.shape,
            count.tolist(),
        )
        np.testing.assert_array_equal(rows[: count[0]], expected[: count[0]])
        assert ((rows >= -1) & (rows < [2, 3, BOXES])).all()  # also behind what is kept

    @pytest.mark.parametrize(
        "shape, most", [((2, 3, ANY), 0), ((ANY, 3, ANY), 3), ((ANY, 3, ANY), 2**40 + 1)]
    )
    def test_sizes_known_at_run_time(self, shape, most):
        mod = self.mod(shape, most)
        compute, compute_after = compiled(mod), compiled(after(mod))
        for count in (1, 2, 17, 33):
            arrays = self.arrays(count, 2, 3, count)
            np.testing.assert_array_equal(compute_after(*arrays)[0], compute(*arrays)[0])

    def test_no_boxes_at_run_time(self):
        assert run(after(self.mod((2, 3, ANY))), *self.arrays(0, 2, 3, 0))[0].shape == (0, 3)

    def test_scores_of_0_or_less_are_compared_as_onnx_says(self):
        boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6]]], "float32")
        scores = np.array([[[0, -0.5, -3], [-3, 0.5, 0]]], "float32")
        mod = self.mod((1, 2, 3), score=-9.0)
        kept = [[0, 0, 0], [0, 0, 2], [0, 1, 1], [0, 1, 2]]
        assert run(after(mod), boxes, scores)[0].tolist() == kept
        assert run(mod, boxes, scores)[0].tolist() != kept

    @pytest.mark.parametrize(
        "options, reason",
        [
            ({"output_format": "tensorflow", "whole": True}, "TensorFlow's format"),
            ({"iou": 0.0}, "keeps nothing at an IoU threshold of 0.0"),
            ({"iou": -0.5}, "keeps nothing at an IoU threshold of -0.5"),
            ({"iou": float("nan")}, "keeps nothing at an IoU threshold of nan"),
            ({"iou": relay.var("iou", shape=(1,))}, "the IoU threshold is not a float32 scalar"),
            ({"score": relay.var("score", shape=(1,))}, "the score threshold is not a float32 scalar"),
            ({"most": relay.var("most", shape=(1,), dtype="int64")}, "boxes to keep is not a scalar"),
            ({"shape": (2, ANY, BOXES)}, "the number of classes is known only at run time"),
            ({"dtype": "float64"}, "no kernel for boxes of float64 and scores of float64"),
        ],
    )
    def test_refusal(self, options, reason):
        assert any(reason in refusal for refusal in reasons(self.mod(**options)))

    def test_second_application(self):
        for mod in (self.mod(), self.mod(whole=True)):
            assert_no_second_change(detection_pipeline(), after(mod, detection_pipeline()))

    def test_on_cuda(self, emulated_cuda):
        arrays, most = self.arrays(0, 2, 5, 50), relay.var("most", shape=(), dtype="int64")
        for mod, inputs in (
            (self.mod((2, 5, 50), most=7, score=0.2, whole=True), arrays),
            (self.mod((2, 5, 50), most=most, whole=True), (*arrays, np.int64(3))),
        ):
            expected, count = run(mod, *inputs)
            rows, count_after = emulated_cuda.run_relay(after(mod), *inputs)
            assert count_after == count
            np.testing.assert_array_equal(rows[: count[0]], expected[: count[0]])

    def test_sizes_known_at_run_time_on_cuda(self, emulated_cuda):
        mod, arrays = self.mod((ANY, 3, ANY), most=4), self.arrays(0, 2, 3, 33)
        (rows,) = emulated_cuda.run_relay(after(mod), *arrays, executor="vm")
        np.testing.assert_array_equal(rows, run(mod, *arrays)[0])


class TestRows:
    """Of `vision.non_max_suppression` behind `vision.get_valid_counts`."""

    def mod(self, shape=(2, BOXES, 6), most=-1, iou=0.5, score=0.0, valid=None, dtype="float32", **options):
        rows = relay.var("rows", shape=shape, dtype=dtype)
        columns = {"score_index": 1, "id_index": 0, "coord_start": 2, **options}
        extra = [value for value in (most, iou, score) if isinstance(value, relay.Var)]
        valid = {"score_index": columns["score_index"], "id_index": columns["id_index"], **(valid or {})}
        count, data, indices = vision.get_valid_counts(rows, score, **valid)
        result = vision.non_max_suppression(data, count, indices, most, iou, **columns)
        result = result if isinstance(result, relay.Expr) else result.astuple()
        return module(rows, *extra, result)

    def rows(self, seed, images=2, count=BOXES, classes=3):
        rng = np.random.default_rng(seed)
        ids = rng.integers(-1, classes, (images, count, 1)).astype("float32")
        scores = random_scores(rng, images, count, 1) - np.float32(0.25)
        return np.concatenate([ids, scores, random_boxes(rng, images, count)], axis=2)

    LAYOUTS = (
        {},
        {"force_suppress": True},
        {"id_index": -1},
        {"id_index": -1, "valid": {"id_index": 0}},
    )
    FORMS = ({"return_indices": True}, {"return_indices": False, "invalid_to_bottom": True})

    @pytest.mark.parametrize("form", FORMS)
    def test_structure(self, form):
        mod = self.mod(**form)
        changed = after(mod)
        assert changed["main"].ret_type == relay.transform.InferType()(mod)["main"].ret_type
        call = nms_call(changed)
        assert call.args[4].data.numpy() == np.nextafter(np.float32(0.5), np.float32(0))
        assert op_name(call.args[2]) == "reinterpret"

    @pytest.mark.parametrize("layout, most", [*((layout, 4) for layout in LAYOUTS), ({}, 0), ({}, 1000)])
    @pytest.mark.parametrize("form", FORMS)
    def test_numbers(self, layout, form, most):
        if "invalid_to_bottom" in form and layout == {"id_index": -1}:
            layout = {**layout, "score_index": 0, "coord_start": 1}
        mod = self.mod(most=most, iou=1 / 3, score=0.25, **layout, **form)
        compute, compute_after = compiled(mod), compiled(after(mod))
        for seed in range(20):
            self.compare(compute, compute_after, self.rows(seed))

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("iou", [1 / 2, 1 / 4, 1e-30])
    def test_many_seeds(self, form, iou):
        mod = self.mod((3, BOXES, 6), iou=iou, **form)
        compute, compute_after = compiled(mod), compiled(after(mod))
        for seed in range(100):
            self.compare(compute, compute_after, self.rows(seed, 3))

    def compare(self, compute, compute_after, *arrays):
        for expected, found in zip(compute(*arrays), compute_after(*arrays)):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(found, expected)

    def test_columns_in_another_order(self):
        columns = {"score_index": 0, "id_index": 5, "coord_start": 1}
        rows = np.roll(self.rows(0), -1, axis=2)  # score, box, id
        for form in self.FORMS:
            mod = self.mod(**columns, **form)
            self.compare(compiled(mod), compiled(after(mod)), rows)

    def test_ids_are_compared_as_floats(self):
        rows = np.tile(np.array([0, 0.5, 0, 0, 2, 2], "float32"), (1, 6, 1))
        rows[0, :, 0] = [-0.0, 0.0, 0.5, np.nextafter(np.float32(0.5), np.float32(1)), np.inf, 1e-45]
        for form in self.FORMS:
            mod = self.mod((1, 6, 6), **form)
            self.compare(compiled(mod), compiled(after(mod)), rows)
        indices, count = run(after(self.mod((1, 6, 6))), rows)
        assert (count.item(), indices.tolist()) == (5, [[0, 2, 3, 4, 5, -1]])

    def test_nothing_is_valid(self):
        for form in self.FORMS:
            mod = self.mod(score=5.0, **form)
            self.compare(compiled(mod), compiled(after(mod)), self.rows(0))

    @pytest.mark.parametrize("form", FORMS)
    def test_sizes_known_at_run_time(self, form):
        mod = self.mod((ANY if "invalid_to_bottom" not in form else 2, ANY, 6), force_suppress=True, **form)
        compute, compute_after = compiled(mod), compiled(after(mod))
        for count in (17, 1, 33, 0):
            self.compare(compute, compute_after, self.rows(count, 2, count))

    @pytest.mark.parametrize(
        "options, reason",
        [
            (
                {"return_indices": False},
                "suppressed rows are not removed: ",
            ),
            ({"top_k": 5}, "the NMS considers only the first 5 boxes"),
            ({"valid": {"score_index": 2}}, "reads the score from another column"),
            ({"valid": {"id_index": -1}}, "reads the class from another column"),
            (
                {"return_indices": False, "invalid_to_bottom": True, "id_index": -1},
                "rows with a negative first column",
            ),
            ({"score": -0.5}, "boxes with a score of 0 or less may be valid"),
            ({"score": relay.var("score", shape=())}, "boxes with a score of 0 or less may be valid"),
            ({"iou": relay.var("iou", shape=())}, "the IoU threshold is known only at run time"),
            ({"iou": 0.0}, "keeps nothing at an IoU threshold of 0.0"),
            ({"most": relay.var("most", shape=(), dtype="int32")}, "to keep is known only at run time"),
            (
                {
                    "shape": (ANY, 5, 6),
                    "force_suppress": True,
                    "return_indices": False,
                    "invalid_to_bottom": True,
                },
                "the batch size is known only at run time",
            ),
            ({"shape": (2, ANY, 6)}, "class ids, and the number of boxes is known only at run time"),
            (
                {"shape": (2, ANY, 6), "most": 5, "id_index": -1},
                "the NMS keeps only some boxes",
            ),
            ({"dtype": "float16"}, "class ids of float16 are not compared exactly"),
        ],
    )
    def test_refusal(self, options, reason):
        assert any(reason in refusal for refusal in reasons(self.mod(**options)))

    def test_rows_of_another_origin_are_refused(self):
        rows, count, indices = (
            relay.var("rows", shape=(1, 5, 6)),
            relay.var("count", shape=(1,), dtype="int32"),
            relay.var("indices", shape=(1, 5), dtype="int32"),
        )
        result = vision.non_max_suppression(rows, count, indices).astuple()
        assert any(
            "from one get_valid_counts" in reason for reason in reasons(module(rows, count, indices, result))
        )
        valid = vision.get_valid_counts(rows, 0.0)
        result = vision.non_max_suppression(valid[1], valid[0], indices).astuple()
        assert any("from one get_valid_counts" in reason for reason in reasons(module(rows, indices, result)))

    def test_second_application(self):
        for form in self.FORMS:
            assert_no_second_change(detection_pipeline(), after(self.mod(**form), detection_pipeline()))

    @pytest.mark.parametrize("form", FORMS)
    def test_on_cuda(self, emulated_cuda, form):
        mod, rows = self.mod(most=5, **form), self.rows(0)
        for expected, found in zip(run(mod, rows), emulated_cuda.run_relay(after(mod), rows)):
            np.testing.assert_array_equal(found, expected)


def test_the_next_float_down_at_run_time():
    bits = np.random.default_rng(0).integers(0x00800001, 0x7F800000, 1_000_000)
    octave = np.arange(0x3F000000, 0x3F800000)  # all from 0.5 to 1; others differ by a power of 2
    values = np.concatenate([bits, octave]).astype("int32").view("float32")
    np.testing.assert_array_equal(values * JUST_BELOW_1, np.nextafter(values, np.float32(0)))


def compiled(mod):
    """A module on LLVM: a function from arrays to a list of arrays."""
    with tvm.transform.PassContext(opt_level=3):
        executable = relay.vm.compile(mod, "llvm")
    machine = tvm.runtime.vm.VirtualMachine(executable, tvm.cpu())

    def compute(*arrays):
        result = machine.run(*(tvm.nd.array(array) for array in arrays))
        return [part.numpy() for part in ([result] if isinstance(result, tvm.nd.NDArray) else result)]

    return compute
