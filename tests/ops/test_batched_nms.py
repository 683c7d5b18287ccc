"""Batched NMS on LLVM: equal to the oracle, bit by bit, whatever the input."""

import functools
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

import topi_ext
from tests.ops.detections import CASES, clustered_detections
from topi_ext.batched_nms import cpu, reference

import tvm
from tvm import relay, te
from tvm.runtime.vm import VirtualMachine

ANY = relay.Any()
BIG = 3 * cpu.BLOCK + 7  # one class of this size is shared out among the threads


def cpu_flags():
    info = Path("/proc/cpuinfo")
    return set(info.read_text().split()) if info.exists() else set()


# --- detections as detectors give them


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case, seed):
    check(*case.detections(1500 + 170 * seed, seed))


@pytest.mark.parametrize("classes", [1, 2, 80])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 1000, 2 * cpu.BLOCK, 2 * cpu.BLOCK + 1, BIG])
def test_number_of_boxes(n, classes):
    check(*clustered_detections(n, classes))


def test_negative_coordinates():
    """Shifted by class, as torchvision does, the two would overlap."""
    boxes = np.array([[0, 0, 10, 10], [-11, -11, -1, -1]], "float32")
    _, count = check(boxes, np.array([0.9, 0.8], "float32"), np.array([0, 1]))
    assert count == 2
    boxes, scores, class_ids = clustered_detections(2000, 80)
    check(boxes - 5000, scores, class_ids)


@pytest.mark.parametrize("levels", [1, 2, 10])
def test_ties(levels):
    boxes, scores, class_ids = clustered_detections(2500, 5)
    check(boxes, np.round(scores * levels).astype("float32"), class_ids)


@pytest.mark.parametrize("n", [500, BIG])
def test_one_class_as_torchvision(n):
    boxes, scores, class_ids = clustered_detections(n, 1)
    assert len(np.unique(scores)) == n
    for threshold in (0.25, 0.5, 0.75):
        indices, count = nms(boxes, scores, class_ids, threshold)
        expected = torchvision.ops.nms(torch.from_numpy(boxes), torch.from_numpy(scores), threshold)
        np.testing.assert_array_equal(indices[:count], expected)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_nms_as_torchvision(request, target):
    boxes, scores, _ = clustered_detections(500, 1)
    variables = variables_of([(ANY, 4), (ANY,)], ("float32", "float32"))
    function = relay.Function(variables, topi_ext.nms(*variables, 0.5, max_output_size=40))
    if target == "llvm":
        outputs = machine_of(function).invoke("main", *map(tvm.nd.array, (boxes, scores)))
        indices, count = (output.numpy() for output in outputs)
    else:
        cuda = request.getfixturevalue("emulated_cuda")
        indices, count = cuda.run_relay(function, boxes, scores, executor="vm")
    expected = torchvision.ops.nms(torch.from_numpy(boxes), torch.from_numpy(scores), 0.5)[:40]
    np.testing.assert_array_equal(indices[:count], expected)


def test_all_kept_and_all_but_one_suppressed():
    n = BIG
    corners = np.arange(n, dtype="float32")[:, None] * 2
    apart = np.concatenate([corners, corners, corners + 1, corners + 1], axis=1)
    scores, class_ids = np.linspace(0, 1, n, dtype="float32"), np.zeros(n, "int64")
    assert check(apart, scores, class_ids)[1] == n
    assert check(np.tile(apart[:1], (n, 1)), scores, class_ids)[1] == 1


# --- arguments


@pytest.mark.parametrize("batch", [0, 1, 3, 70])
@pytest.mark.parametrize("n", [0, 1, 300])
@pytest.mark.parametrize("dynamic", [False, True])
def test_batch(batch, n, dynamic):
    check(*batched(batch, n), dynamic=dynamic)


def test_batch_of_large_classes():
    boxes, scores, class_ids = batched(3, BIG, classes=2)
    class_ids[:] = class_ids[..., :1]
    check(boxes, scores, class_ids)


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing(dynamic):
    check(*clustered_detections(0, 5), dynamic=dynamic)
    check(*clustered_detections(0, 5), dynamic=dynamic, score_threshold=0.5, max_output_size=3)


@pytest.mark.parametrize("boxes_type", ["float32", "float16"])
@pytest.mark.parametrize("scores_type", ["float32", "float16"])
@pytest.mark.parametrize("ids_type", ["int32", "int64"])
def test_types(boxes_type, scores_type, ids_type):
    boxes, scores, class_ids = clustered_detections(1000, 5)
    check(boxes.astype(boxes_type), scores.astype(scores_type), class_ids.astype(ids_type))


def test_bfloat16():
    rng = np.random.default_rng(0)  # numbers that bfloat16 holds exactly
    boxes = np.concatenate([rng.integers(0, 100, (500, 2)), rng.integers(101, 256, (500, 2))], axis=1)
    arrays = boxes.astype("float32"), rng.integers(0, 256, 500).astype("float32"), rng.integers(0, 3, 500)
    variables = [relay.var(name, shape=a.shape, dtype=str(a.dtype)) for name, a in zip("bsc", arrays)]
    inputs = [relay.cast(v, "bfloat16") for v in variables[:2]] + variables[2:]
    machine = machine_of(relay.Function(variables, topi_ext.batched_nms(*inputs, 0.5)))
    outputs = [output.numpy() for output in machine.invoke("main", *map(tvm.nd.array, arrays))]
    assert_equal(outputs, reference.batched_nms(*arrays, 0.5))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_class_ids_of_any_value(dtype):
    boxes, scores, class_ids = clustered_detections(1500, 12)
    info = np.iinfo(dtype)
    special = [info.min, info.min + 1, -(2**20), -1, 0, 1, 2047, 2048, 2**22, 2**30, info.max - 1, info.max]
    check(boxes, scores, np.array(special, dtype)[class_ids])
    anything = np.random.default_rng(0).integers(info.min, info.max, 40, dtype, endpoint=True)
    check(boxes, scores, np.random.default_rng(1).choice(anything, len(boxes)))


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.05, 0.9999, 1.0, 1.5, np.inf, -np.inf, np.nan])
def test_iou_threshold(threshold):
    check(*clustered_detections(1000, 5), threshold)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.05, 0.5, 1.0, np.inf, -np.inf, np.nan])
def test_score_threshold(threshold):
    boxes, scores, class_ids = clustered_detections(1000, 5)
    scores[::50] = 0.5
    check(boxes, scores, class_ids, score_threshold=threshold)


@pytest.mark.parametrize("thresholds", [(0, 0), (0.3, 1), (np.inf, -np.inf), (-0.5, np.nan)])
def test_thresholds_as_numbers(thresholds):
    check(*clustered_detections(500, 5), thresholds[0], dynamic=False)
    check(*clustered_detections(500, 5), thresholds[0], dynamic=False, score_threshold=thresholds[1])


@pytest.mark.parametrize(
    "size, dynamic", [(0, False), (0, True), (1, False), (10, True), (299, False), (300, False), (1000, True)]
)
def test_max_output_size(size, dynamic):
    check(*clustered_detections(300, 5), max_output_size=size, dynamic=dynamic)
    check(*batched(3, 300), max_output_size=size, dynamic=dynamic)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 150, 300, 301, 2**31 - 1])
def test_valid_count(count):
    check(*clustered_detections(300, 5), valid_count=count)


def test_valid_count_of_each_batch_item():
    check(*batched(8, 300), valid_count=[-(2**31), -1, 0, 1, 150, 300, 301, 2**31 - 1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_all_arguments(dynamic):
    check(*batched(3, 400), 0.6, score_threshold=0.3, max_output_size=40, valid_count=[400, 17, 350])


# --- numbers that are none, and boxes without area


@pytest.mark.parametrize("score_threshold", [None, 0.5])
def test_special_scores(score_threshold):
    boxes, _, class_ids = clustered_detections(1000, 5)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1, 3e38], "float32")
    scores = np.random.default_rng(0).choice(special, 1000)
    check(boxes, scores, class_ids, score_threshold=score_threshold)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_special_coordinates(dtype, threshold):
    boxes, scores, class_ids = clustered_detections(2000, 2, dtype=dtype)
    special_coordinates(boxes, share=0.1)
    check(boxes, scores, class_ids, threshold)
    with np.errstate(over="ignore"):
        check(boxes.astype("float32") * 1e34, scores, class_ids, threshold)  # areas beyond float32


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_corners_in_any_order(threshold):
    boxes, scores, class_ids = clustered_detections(1000, 2)
    check(boxes[:, np.random.default_rng(0).permuted([0, 1, 2, 3])], scores, class_ids, threshold)


def test_identical_boxes_without_area_are_all_kept():
    boxes, scores = np.full((20, 4), 7, "float32"), np.ones(20, "float32")
    assert check(boxes, scores, np.zeros(20, "int64"))[1] == 20


@pytest.mark.parametrize(
    "other, threshold", [([0, 0, 5, 10], 0.5), ([0, 0, 10, 2.5], 0.25), ([5, 0, 15, 10], 1 / 3)]
)
def test_iou_at_the_threshold(other, threshold):
    boxes = np.array([[0, 0, 10, 10], other], "float32")
    threshold = np.float32(threshold)
    assert reference.iou(boxes[0], boxes[1:]) == threshold
    rest = np.array([0.9, 0.8], "float32"), np.array([0, 0])
    assert check(boxes, *rest, threshold)[1] == 2
    assert check(boxes, *rest, np.nextafter(threshold, np.float32(0)))[1] == 1


# --- anything


@st.composite
def problems(draw):
    """Few distinct coordinates, scores and ids, so that ties and exact overlaps are frequent."""
    n = draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    corners = rng.integers(-1, draw(st.integers(1, 60)), (n, 4)) * draw(st.sampled_from([0.1, 1.0, 1e20]))
    if draw(st.booleans()):
        corners = np.concatenate([np.sort(corners[:, ::2]), np.sort(corners[:, 1::2])], 1)[:, [0, 2, 1, 3]]
    scores = rng.integers(0, draw(st.integers(1, 1000)), n) / 7 - 1
    class_ids = rng.integers(0, draw(st.integers(1, 100)), n) - 5
    threshold = draw(st.sampled_from([0, 0.1, 0.5, 0.75, 1]) | st.floats(-0.5, 1.5, width=32))
    return corners, scores, class_ids, threshold


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from(["float32", "float16"]), st.none() | st.floats(-1, 2, width=32))
def test_any_problem(problem, dtype, score_threshold):
    corners, scores, class_ids, threshold = problem
    with np.errstate(over="ignore"):
        boxes = corners.astype(dtype)
    check(boxes, scores.astype(dtype), class_ids, threshold, score_threshold=score_threshold)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_oracle(problem):
    """The oracle against the definition, spelt out number by number."""
    corners, scores, class_ids, threshold = problem
    n = min(len(scores), 60)
    boxes, scores = corners[:n].astype("float32"), scores[:n].astype("float32")
    indices, count = reference.batched_nms(boxes, scores, class_ids[:n], threshold)
    expected = greedy(boxes, scores, class_ids[:n], np.float32(threshold))
    assert list(indices[:count]) == expected
    assert (indices[count:] == -1).all()


def test_oracle_takes_nan_first_and_drops_it_with_a_threshold():
    boxes = np.array([[i, i, i + 1, i + 1] for i in range(5)], "float32")
    scores, class_ids = np.array([0.5, np.nan, np.inf, np.nan, 0.7], "float32"), np.zeros(5, "int64")
    assert list(reference.batched_nms(boxes, scores, class_ids, 0.5)[0]) == [1, 3, 2, 4, 0]
    kept = reference.batched_nms(boxes, scores, class_ids, 0.5, score_threshold=0.5)
    assert list(kept[0]) == [2, 4, -1, -1, -1]
    assert kept[1] == 2


@np.errstate(all="ignore")
def greedy(boxes, scores, class_ids, threshold):
    kept = []
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        x1, y1, x2, y2 = boxes[i]
        for j in kept:
            u1, v1, u2, v2 = boxes[j]
            width, height = min(u2, x2) - max(u1, x1), min(v2, y2) - max(v1, y1)
            inter = max(width, np.float32(0)) * max(height, np.float32(0))
            union = (u2 - u1) * (v2 - v1) + (x2 - x1) * (y2 - y1) - inter
            if class_ids[i] == class_ids[j] and inter / union > threshold:
                break
        else:
            kept.append(i)
    return kept


# --- types


@pytest.mark.parametrize(
    "shapes, indices, count",
    [
        (([5, 4], [5], [5]), [5], []),
        (([ANY, 4], [ANY], [ANY]), [ANY], []),
        (([ANY, 4], [5], [5]), [ANY], []),
        (([2, 5, 4], [2, 5], [2, 5]), [2, 5], [2]),
        (([ANY, 5, 4], [ANY, 5], [2, 5]), [ANY, 5], [ANY]),
        (([2, ANY, 4], [2, ANY], [2, ANY]), [2, ANY], [2]),
    ],
)
def test_result_type(shapes, indices, count):
    expected = relay.TupleType([relay.TensorType(indices, "int64"), relay.TensorType(count, "int32")])
    assert tvm.ir.structural_equal(result_type(shapes), expected)


VALID = ((2, 5, 4), (2, 5), (2, 5))


@pytest.mark.parametrize(
    "shapes, dtypes, options, reason",
    [
        (((4,), (5,), (5,)), {}, {}, r"boxes must have the shape \(N, 4\) or \(B, N, 4\), not \[4\]"),
        (((5, 4), (1, 5), (5,)), {}, {}, r"scores must have the shape \(N\) beside boxes of rank 2"),
        (((1, 5, 4), (1, 5), (5,)), {}, {}, r"class_ids must have the shape \(B, N\) beside boxes of rank 3"),
        (((5, 4), (6,), (5,)), {}, {}, "axis N: boxes has 5, scores has 6, class_ids has 5"),
        (((2, 5, 4), (2, 5), (3, 5)), {}, {}, "axis B: boxes has 2, scores has 2, class_ids has 3"),
        (((5, 5), (5,), (5,)), {}, {}, r"boxes must have the shape \(N, 4\) or \(B, N, 4\), not \[5, 5\]"),
        (VALID, {"boxes": "int32"}, {}, "boxes must be of type float32 or float16 or bfloat16, not int32"),
        (VALID, {"scores": "float64"}, {}, "scores must be of type .*, not float64"),
        (VALID, {"class_ids": "float32"}, {}, "class_ids must be of type int32 or int64, not float32"),
        (VALID, {}, {"valid_count": ((), "int32")}, r"valid_count must have the shape \(B\)"),
        (VALID, {}, {"valid_count": ((3,), "int32")}, "axis B: .*valid_count has 3"),
        (VALID, {}, {"valid_count": ((2,), "int64")}, "valid_count must be of type int32, not int64"),
        (VALID, {}, {"score_threshold": ((1,), "float32")}, r"score_threshold must have the shape \(\)"),
        (VALID, {}, {"iou_threshold": ((), "float64")}, "iou_threshold must be of type float32, not float64"),
    ],
)
def test_refused(shapes, dtypes, options, reason):
    with pytest.raises(tvm.TVMError, match=reason):
        result_type(shapes, dtypes, **options)


def test_a_threshold_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="iou_threshold must be a number or an expression"):
        topi_ext.batched_nms(*variables_of(VALID), "0.5")


def test_negative_max_output_size_is_refused():
    with pytest.raises(ValueError, match="max_output_size must be at least 0, not -1"):
        topi_ext.batched_nms(*variables_of(VALID), 0.5, max_output_size=-1)


@pytest.mark.parametrize("options", [{}, {"max_output_size": 3}])
@pytest.mark.parametrize("shapes", [((5, 4), (6,), (5,)), ((5, 4), (5,), (4,)), ((5, 5), (5,), (5,))])
def test_shapes_that_differ_at_run_time_are_refused(shapes, options):
    arrays = [np.zeros(shape, dtype) for shape, dtype in zip(shapes, ("float32", "float32", "int64"))]
    with pytest.raises(tvm.TVMError, match=r"topi_ext\.batched_nms: "):
        nms(*arrays, **options)


def test_other_targets_are_refused():
    variables = variables_of(VALID)
    function = relay.Function(variables, topi_ext.batched_nms(*variables, 0.5))
    with pytest.raises(tvm.TVMError, match="kernels for the targets llvm and cuda, but not for"):
        relay.build(tvm.IRModule.from_expr(function), "c")


def test_module_may_be_imported_again():
    name = "topi_ext.batched_nms.op"
    module = sys.modules.pop(name)
    try:
        again = importlib.import_module(name)
        assert again is not module
        relay.transform.InferTypeLocal(again.batched_nms(*variables_of(VALID), 0.5))
    finally:
        sys.modules[name] = module


# --- the kernel itself


@pytest.mark.parametrize("cpu_name", ["x86-64", "haswell", "skylake-avx512"])
def test_vectors_and_no_fused_multiply_add(cpu_name):
    """Fused, a product is not rounded, and the IoU may end up on the other side of the threshold."""
    shapes, dtypes = ((1000, 4), (1000,), (1000,), ()), ("float32", "float32", "int64", "float32")
    inputs = [te.placeholder(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
    names = "boxes", "scores", "class_ids", "iou_threshold"
    outputs = cpu.batched_nms(dict(zip(names, inputs)), max_output_size=-1)
    target = f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu_name}"
    assembly = tvm.build(te.create_schedule(outputs[0].op), [*inputs, *outputs], target).get_source("asm")
    for instruction in ("divps", "minps", "maxps", "movmsk" if cpu_name != "skylake-avx512" else "cmpltps"):
        assert instruction in assembly
    assert "divss" not in assembly
    assert "fmadd" not in assembly and "fmsub" not in assembly
    assert "fnmadd" not in assembly and "fnmsub" not in assembly


@pytest.mark.skipif(not {"avx2", "fma", "f16c"} <= cpu_flags(), reason="this CPU has no AVX2, FMA, F16C")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_wider_vectors(case):
    detections = case.detections(2500)
    special_coordinates(detections[0], share=0.01)
    for threshold in (0.5, -0.5):
        check(*detections, threshold, target="llvm -mattr=+avx2,+fma,+f16c")


# --- helpers


def special_coordinates(boxes, share):
    rng = np.random.default_rng(0)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 6e4, -6e4], boxes.dtype)
    spots = rng.random(boxes.shape) < share
    boxes[spots] = rng.choice(special, spots.sum())


def batched(batch, n, classes=5):
    items = [clustered_detections(n, classes, seed) for seed in range(batch)] or [clustered_detections(n, 1)]
    return [np.stack(parts)[:batch] for parts in zip(*items)]


def variables_of(shapes, dtypes=("float32", "float32", "int64")):
    names = ("boxes", "scores", "class_ids")
    return [relay.var(name, shape=s, dtype=d) for name, s, d in zip(names, shapes, dtypes)]


def result_type(shapes, dtypes=None, **options):
    dtypes = {"boxes": "float32", "scores": "float32", "class_ids": "int64", **(dtypes or {})}
    variables = variables_of(shapes, dtypes.values())
    options = {name: relay.var(name, shape=s, dtype=d) for name, (s, d) in options.items()}
    call = topi_ext.batched_nms(*variables, **{"iou_threshold": 0.5, **options})
    function = relay.Function([*variables, *options.values()], call)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"].ret_type


TYPES = {"iou_threshold": "float32", "score_threshold": "float32", "valid_count": "int32"}


def nms(
    boxes,
    scores,
    class_ids,
    iou_threshold=0.5,
    *,
    dynamic=True,
    target="llvm",
    max_output_size=None,
    **options,
):
    """The operator's answer; if `dynamic`, by a program for all shapes and thresholds, compiled only once."""
    options = {"iou_threshold": iou_threshold, **options}
    options = {name: np.asarray(value, TYPES[name]) for name, value in options.items() if value is not None}
    constants = {}
    if not dynamic:
        constants = {name: float(options.pop(name)) for name in list(options) if name != "valid_count"}
    arrays = {"boxes": boxes, "scores": scores, "class_ids": class_ids, **options}
    signature = [(name, a.ndim if dynamic else a.shape, str(a.dtype)) for name, a in arrays.items()]
    machine = compiled(tuple(signature), target, max_output_size=max_output_size, **constants)
    return [output.numpy() for output in machine.invoke("main", *map(tvm.nd.array, arrays.values()))]


@functools.cache
def compiled(signature, target, **constants):
    variables = {
        name: relay.var(name, shape=[ANY] * shape if isinstance(shape, int) else shape, dtype=dtype)
        for name, shape, dtype in signature
    }
    function = relay.Function([*variables.values()], topi_ext.batched_nms(**variables, **constants))
    return machine_of(function, target)


def machine_of(function, target="llvm"):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    return VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")


def check(boxes, scores, class_ids, iou_threshold=0.5, *, dynamic=True, target="llvm", **options):
    outputs = nms(boxes, scores, class_ids, iou_threshold, dynamic=dynamic, target=target, **options)
    expected = reference.batched_nms(boxes, scores, class_ids, iou_threshold, **options)
    assert_equal(outputs, expected)
    return outputs


def assert_equal(outputs, expected):
    for output, value in zip(outputs, expected):
        assert output.dtype == value.dtype
        np.testing.assert_array_equal(output, value)
