"""The CUDA kernels of batched NMS: against brute force on the emulated device, and on a GPU."""

import shutil

import numpy as np
import pytest

from tests.ops import class_by_class
from tests.ops.detections import CASES, clustered_detections
from tests.ops.nvcc import assert_compiles_without_spills
from topi_ext.batched_nms import batched_nms, cuda, cuda_few, cuda_rank, reference
from topi_ext.batched_nms.cuda_suppress import LARGE_TILES, SMALL_TILES, SuppressShape
from topi_ext.sort.select import ONE_BLOCK
from topi_ext.sort.tile import ONE_TILE

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.runtime.vm import VirtualMachine

SMALL, TILE, MAX_SORTED_AT_ONCE = SMALL_TILES.boxes, LARGE_TILES.boxes, ONE_TILE[-1].size
MAX_RANKED = cuda_rank.MAX_KEYS
SIZES = [0, 1, 2, 31, 32, 33, 1000, MAX_RANKED, MAX_RANKED + 1]
SIZES += [SMALL - 1, SMALL, SMALL + 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 7]
SIZES += [3000, MAX_SORTED_AT_ONCE + 1]
MANY = max(MAX_RANKED, MAX_SORTED_AT_ONCE) + 1  # they are sorted in several tiles
NAN, INF = float("nan"), float("inf")


def function_of(arrays, iou_threshold=0.5, *, dynamic=False, valid_count=None, **options):
    """A Relay function of the boxes, scores and class ids, and of `valid_count` where it is given."""
    inputs = [*arrays] if valid_count is None else [*arrays, valid_count]
    variables = []
    for number, array in enumerate(inputs):
        fixed = 1 if number == 0 else 0  # the four corners
        shape = [relay.Any()] * (array.ndim - fixed) + [4] * fixed if dynamic else array.shape
        variables.append(relay.var(f"x{number}", shape=shape, dtype=str(array.dtype)))
    if valid_count is not None:
        options["valid_count"] = variables[3]
    return relay.Function(variables, batched_nms(*variables[:3], iou_threshold, **options)), inputs


def check(cuda, arrays, iou_threshold=0.5, **options):
    """Run it on the emulated device and compare with brute force; answers what it has found."""
    function, inputs = function_of(arrays, iou_threshold, **options)
    outputs = cuda.run_relay(function, *inputs)
    assert_equal(outputs, reference.batched_nms(*arrays, iou_threshold, **options))
    return outputs


def assert_equal(outputs, expected):
    for output, value in zip(outputs, expected):
        assert (output.dtype, output.shape) == (np.asarray(value).dtype, np.shape(value))
        np.testing.assert_array_equal(output, value)


def batch_of(size, n, classes):
    return [
        np.stack(arrays) for arrays in zip(*(clustered_detections(n, classes, seed) for seed in range(size)))
    ]


# --- sizes and classes


@pytest.mark.parametrize("classes", [1, 5, 80, 1203])
@pytest.mark.parametrize("n", SIZES)
def test_size(emulated_cuda, n, classes):
    check(emulated_cuda, clustered_detections(n, classes))


@pytest.mark.parametrize("options", [{}, {"max_output_size": 40, "score_threshold": 0.2}])
@pytest.mark.parametrize("n", [1, 33, TILE + 1, 3000, MAX_SORTED_AT_ONCE + 1])
def test_sorted_however_few(emulated_cuda, monkeypatch, n, options):
    monkeypatch.setattr(cuda_rank, "MAX_KEYS_OF_ALL", 0)
    check(emulated_cuda, clustered_detections(n, 5), **options)
    check(emulated_cuda, batch_of(2, n, 5), **options)


def test_few_or_many_at_run_time(emulated_cuda, monkeypatch):
    """On both sides of the limits, which are set low here: of the rows together, and of one."""
    monkeypatch.setattr(cuda_rank, "MAX_KEYS", 50)
    monkeypatch.setattr(cuda_rank, "MAX_KEYS_OF_ALL", 100)
    run = compiled_for_any_size(emulated_cuda, batch_of(1, 1, 5), max_output_size=30)
    for size, n in ((1, 50), (1, 51), (2, 50), (3, 33), (3, 34), (100, 1), (101, 1), (3, 0)):
        arrays = batch_of(size, n, 5)
        assert_equal(run(*arrays), reference.batched_nms(*arrays, 0.5, max_output_size=30))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_detector(emulated_cuda, case):
    check(emulated_cuda, case.detections(2000))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 40, 3 * TILE + 7])
def test_batch(emulated_cuda, size, n):
    check(emulated_cuda, batch_of(size, n, 3))


def test_batch_of_nothing(emulated_cuda):
    check(emulated_cuda, [array[:0] for array in batch_of(1, 10, 3)])


@pytest.mark.parametrize("options", [{}, {"max_output_size": 100, "score_threshold": 0.2}])
def test_size_known_at_run_time(emulated_cuda, options):
    run = compiled_for_any_size(emulated_cuda, clustered_detections(1, 5), **options)
    for n in (0, 1, 33, TILE, TILE + 1, 3000, MANY):
        arrays = clustered_detections(n, 5)
        assert_equal(run(*arrays), reference.batched_nms(*arrays, 0.5, **options))


def test_batch_known_at_run_time(emulated_cuda):
    run = compiled_for_any_size(emulated_cuda, batch_of(1, 1, 5))
    for size, n in ((2, 500), (1, 3000), (5, 1), (0, 7), (3, 0)):
        arrays = [array[:size] for array in batch_of(max(size, 1), n, 5)]
        assert_equal(run(*arrays), reference.batched_nms(*arrays, 0.5))


@pytest.mark.parametrize("box_type, score_type", [("float16", "float16"), ("float32", "float16")])
def test_half(emulated_cuda, box_type, score_type):
    boxes, scores, ids = clustered_detections(1000, 5)
    check(emulated_cuda, (boxes.astype(box_type), scores.astype(score_type), ids))


def test_bfloat16(emulated_cuda):
    boxes, scores, ids = clustered_detections(1000, 5)
    rounded = [(array.view("uint32") & 0xFFFF0000).view("float32") for array in (boxes, scores)]
    x = [relay.var(f"x{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate((boxes, scores, ids))]
    result = batched_nms(x[0].astype("bfloat16"), x[1].astype("bfloat16"), x[2], 0.5)
    outputs = emulated_cuda.run_relay(relay.Function(x, result), *rounded, ids)
    assert_equal(outputs, reference.batched_nms(*rounded, ids, 0.5))


def test_area_beyond_half(emulated_cuda):
    boxes = np.array([[0, 0, 1000, 1000], [0, 0, 1000, 990], [0, 0, 400, 1000]], "float16")
    check(emulated_cuda, (boxes, np.arange(3).astype("float16"), np.zeros(3, "int32")))


# --- order and ties


@pytest.mark.parametrize("n", [100, 3 * TILE + 7])
def test_scores_that_tie(emulated_cuda, n):
    boxes, _, ids = clustered_detections(n, 3)
    check(
        emulated_cuda, (boxes, np.random.default_rng(0).choice([0.5, 0.25, -0.5], n).astype("float32"), ids)
    )


@pytest.mark.parametrize("overlap", [1, 3, 8])
def test_a_long_chain(emulated_cuda, overlap):
    """Boxes in a row, each overlapping the next: what is kept depends on all before it."""
    n = 2 * TILE + 5
    left = np.arange(n, dtype="float32") * 8
    boxes = np.stack([left, left * 0, left + 8 * (overlap + 1), left * 0 + 8], axis=1)
    threshold = 1 / (2 * overlap + 2)
    check(emulated_cuda, (boxes, np.ones(n, "float32"), np.zeros(n, "int64")), threshold)


def test_one_box_many_times(emulated_cuda):
    n = 2 * TILE + 5
    boxes = np.tile(np.array([1, 2, 3, 4], "float32"), (n, 1))
    indices, count = check(emulated_cuda, (boxes, np.ones(n, "float32"), np.zeros(n, "int64")))
    assert (indices[0], count) == (0, 1)


def test_boxes_that_do_not_overlap(emulated_cuda):
    n = 2 * TILE + 5
    corner = np.arange(n, dtype="float32")[:, None] * 10
    boxes = np.concatenate([np.tile(corner, 2), np.tile(corner, 2) + 9], axis=1)
    scores = np.random.default_rng(0).random(n, dtype="float32")
    _, count = check(emulated_cuda, (boxes, scores, np.zeros(n, "int64")))
    assert count == n


@pytest.mark.parametrize("n", [50, 1000])
def test_special_scores(emulated_cuda, n):
    boxes, _, ids = clustered_detections(n, 3)
    special = np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 3e38], "float32")
    arrays = boxes, np.random.default_rng(0).choice(special, n), ids
    check(emulated_cuda, arrays)
    check(emulated_cuda, arrays, score_threshold=0.0)
    check(emulated_cuda, arrays, score_threshold=-INF)


# --- boxes and thresholds


def strange_boxes(n, seed=0):
    """Without area, inside out, infinite, huge, tiny, not a number; most of them several times."""
    rng = np.random.default_rng(seed)
    values = np.array(
        [0, -0.0, 1, 2, 3, -5, INF, -INF, NAN, 3e38, -3e38, 1e19, 1e-19, 1e-22, 1e-44], "float32"
    )
    likely = np.array([0.1, 0.1, 0.15, 0.15, 0.1, 0.1] + [0.3 / 9] * 9)
    boxes = rng.choice(values, (n, 4), p=likely)
    tame = rng.random(n) < 0.5  # the others would rarely overlap at all
    boxes[tame] = np.concatenate([rng.integers(0, 3, (n, 2)), rng.integers(2, 6, (n, 2))], axis=1)[tame]
    return boxes


@pytest.mark.parametrize("threshold", [0.5, 0.0, -0.0, 1.0, -1.0, 1e-38, 1e-44, 2.0, NAN, INF, -INF])
def test_strange_boxes(emulated_cuda, threshold):
    n = 2 * TILE + 5
    scores = np.random.default_rng(1).integers(0, 50, n).astype("float32")
    check(emulated_cuda, (strange_boxes(n), scores, np.arange(n) % 2), threshold)


@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e-21, 1e-22, 1e18])
def test_thresholds_at_and_beside_the_iou(emulated_cuda, scale):
    """Where the quick test must leave the answer to the division."""
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.random((200, 2)), 1 + rng.random((200, 2))], axis=1)
    boxes = (boxes * scale).astype("float32")
    arrays = boxes, np.arange(200, 0, -1).astype("float32"), np.zeros(200, "int64")
    exact = reference.iou(boxes[0], boxes[1:])
    threshold = relay.var("threshold", shape=(), dtype="float32")
    function, inputs = function_of(arrays, threshold)
    function = relay.Function([*function.params, threshold], function.body)
    library = relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    for iou in exact[:10]:
        for value in (iou, np.nextafter(iou, np.float32(0)), np.nextafter(iou, np.float32(1))):
            outputs = run_graph(library, emulated_cuda.device, *inputs, np.float32(value))
            assert_equal(outputs, reference.batched_nms(*arrays, value))


# --- class ids


def ids_that_collide(count):
    """Different class ids that the sort cannot tell apart."""
    ids = []
    for rest in range(count):
        low = np.uint32(7) ^ np.uint32(rest * 0x1E3779B1 & 0xFFFFFFFF)
        high = rest - int(low >> np.uint32(31))
        ids.append((high << 32) + int(low))
    return np.array(ids, "int64")


@pytest.mark.parametrize("n", [100, 3 * TILE + 7])
@pytest.mark.parametrize(
    "values",
    [
        np.array([-1, -(2**31), 2**31 - 1, 0], "int32"),
        np.array([-1, -(2**63), 2**63 - 1, 2**32, 2**32 + 1, -(2**32), 2**31, -(2**31) - 1], "int64"),
        ids_that_collide(4),
    ],
    ids=["int32", "int64", "collide"],
)
def test_any_class_id(emulated_cuda, n, values):
    boxes, scores, ids = clustered_detections(n, len(values))
    check(emulated_cuda, (boxes, scores, values[ids]), score_threshold=0.1)


# --- options


@pytest.mark.parametrize("max_output_size", [0, 1, 7, 700, 5000])
@pytest.mark.parametrize("n", [0, 600, MANY])
def test_max_output_size(emulated_cuda, n, max_output_size):
    check(emulated_cuda, clustered_detections(n, 80), max_output_size=max_output_size)


@pytest.mark.parametrize("n", [MANY + 100, ONE_BLOCK + 100])
@pytest.mark.parametrize("score_threshold", [0.5, 2.0])
def test_few_of_many(emulated_cuda, n, score_threshold):
    """The kept boxes are selected from all, not sorted with them; some or all places may be left over."""
    emulated_cuda.sanitize = None
    arrays = batch_of(2, n, 300)
    check(emulated_cuda, arrays, max_output_size=20, score_threshold=score_threshold)


@pytest.mark.parametrize("max_output_size", [None, 20, MANY + 700])
@pytest.mark.parametrize("numbers", [[50], [51], [0], [50, 3, 0], [50, 51, 7], [0, MANY]])
def test_few_take_part(emulated_cuda, monkeypatch, numbers, max_output_size):
    """On both sides of the limit, which is set low here; equal scores and classes keep their order."""
    monkeypatch.setattr(cuda_few, "FEW", 50)
    rng = np.random.default_rng(0)
    boxes = np.stack([clustered_detections(MANY, 3, seed)[0] for seed in range(len(numbers))])
    scores = np.full((len(numbers), MANY), 0.25, "float32")
    for row, number in zip(scores, numbers):
        row[rng.permutation(MANY)[:number]] = rng.integers(3, 9, number) / 8
    ids = rng.integers(0, 3, scores.shape)
    arrays = (boxes[0], scores[0], ids[0]) if len(numbers) == 1 else (boxes, scores, ids)
    check(emulated_cuda, arrays, score_threshold=0.25, max_output_size=max_output_size)


@pytest.mark.parametrize("number", [0, 1, cuda_rank.THREADS, cuda_few.FEW, cuda_few.FEW + 1])
def test_few_of_a_valid_count(emulated_cuda, number):
    check(emulated_cuda, clustered_detections(MANY, 80), valid_count=np.array(number, "int32"))


@pytest.mark.parametrize("score_threshold", [0.05, 0.5, 2.0])
def test_score_threshold(emulated_cuda, score_threshold):
    check(emulated_cuda, clustered_detections(1000, 5), score_threshold=score_threshold)


def test_score_equal_to_the_threshold_is_left_out(emulated_cuda):
    arrays = np.eye(3, 4, dtype="float32"), np.array([0.5, 0.75, 0.25], "float32"), np.zeros(3, "int64")
    indices, _ = check(emulated_cuda, arrays, score_threshold=0.5)
    assert list(indices) == [1, -1, -1]


@pytest.mark.parametrize("valid_count", [-3, 0, 1, 300, 1000, 2000])
def test_valid_count(emulated_cuda, valid_count):
    check(emulated_cuda, clustered_detections(1000, 5), valid_count=np.array(valid_count, "int32"))


def test_all_options_in_a_batch(emulated_cuda):
    check(
        emulated_cuda,
        batch_of(5, 700, 5),
        0.3,
        valid_count=np.array([0, 1, 300, 700, 701], "int32"),
        score_threshold=0.3,
        max_output_size=50,
    )


# --- the kernels themselves


@pytest.mark.parametrize("boxes, slices", [(32, 1), (64, 2), (128, 4), (256, 1), (512, 2)])
@pytest.mark.parametrize("classes", [1, 30])
def test_shape_of_tile(emulated_cuda, monkeypatch, boxes, slices, classes):
    """Also a class of more tiles than a block has threads."""
    monkeypatch.setattr(cuda, "shape_for", lambda _: SuppressShape(boxes, slices))
    check(emulated_cuda, clustered_detections(2500, classes))


@pytest.mark.parametrize("boxes, slices", [(64, 4), (128, 3), (48, 1)])
def test_a_shape_whose_slices_have_no_equal_shares_is_refused(boxes, slices):
    with pytest.raises(ValueError, match="slice"):
        SuppressShape(boxes, slices)


FEW_TAKE_PART = {"score_threshold": 0.9}


@pytest.mark.parametrize(
    "n, classes, options",
    [(100, 3, {}), (3 * TILE + 7, 1, {}), (2000, 30, {}), (MANY, 30, {}), (MANY, 30, FEW_TAKE_PART)],
)
def test_no_races(emulated_cuda, n, classes, options):
    emulated_cuda.sanitize = "thread"
    arrays = clustered_detections(n, classes)
    check(emulated_cuda, arrays, max_output_size=500, **options)
    emulated_cuda.sanitize = None
    emulated_cuda.assert_same_in_any_order(lambda: check(emulated_cuda, arrays, **options), seeds=range(2))


@pytest.mark.parametrize("n, options", [(1000, {}), (MANY, FEW_TAKE_PART)])
def test_runs_again_with_other_boxes(emulated_cuda, n, options):
    """Counters and flags of the run before must not be taken for those of this one."""
    function, _ = function_of(clustered_detections(n, 3), **options)
    library = relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    module = graph_executor.GraphModule(library["default"](emulated_cuda.device))
    for seed in range(3):
        arrays = clustered_detections(n, 3, seed)
        expected = reference.batched_nms(*arrays, 0.5, **options)
        assert_equal(run_module(module, emulated_cuda.device, *arrays), expected)


def test_contracts_nothing(emulated_cuda):
    """On a GPU, nvcc may contract a product and a sum; the emulated device then must, too."""
    emulated_cuda.flags = ("-ffp-contract=fast", "-mfma")
    check(emulated_cuda, clustered_detections(1000, 1), 0.7)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_spills(emulated_cuda, tmp_path, dynamic):
    arrays = batch_of(2, MANY, 5)
    function, _ = function_of(arrays, dynamic=dynamic, max_output_size=100, score_threshold=0.1)
    relay.vm.compile(tvm.IRModule.from_expr(function), emulated_cuda.target)
    source = next(source for source in emulated_cuda.sources if "__fdiv_rn" in source)
    assert_compiles_without_spills(source, tmp_path, spilled=8)  # none, but for sm_100


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [1, 80, 1203])
@pytest.mark.parametrize("n", [0, 1, 100, TILE + 1, 1000, 20_000, 200_000])
def test_gpu_size(n, classes):
    arrays = clustered_detections(n, classes)
    function, inputs = function_of(arrays)
    library = relay.build(tvm.IRModule.from_expr(function), Gpu.target)
    module = graph_executor.GraphModule(library["default"](Gpu.device))
    outputs = run_module(module, Gpu.device, *inputs)
    assert_equal(outputs, class_by_class.batched_nms(*arrays, 0.5))
    for _ in range(20):
        module.run()
        assert_equal([module.get_output(i).numpy() for i in range(2)], outputs)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("score_threshold", [0.1, 0.9, 0.97, 2.0])
def test_gpu_few_of_many(size, score_threshold):
    arrays = batch_of(size, 90_000, 90)
    check_on_gpu(arrays, score_threshold=score_threshold, max_output_size=100)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gpu_detector(case):
    check_on_gpu(case.detections(5000))


@pytest.mark.gpu
@pytest.mark.parametrize("threshold", [0.5, 0.0, -1.0, 1e-44, NAN, INF])
def test_gpu_strange_boxes(threshold):
    n = 1500
    scores = np.random.default_rng(1).integers(0, 50, n).astype("float32")
    check_on_gpu((strange_boxes(n), scores, np.arange(n) % 2), threshold)


@pytest.mark.gpu
@pytest.mark.parametrize("size, n", [(1, 1000), (8, 3000), (64, 200)])
def test_gpu_batch(size, n):
    counts = np.arange(size, dtype="int32") * 97
    check_on_gpu(batch_of(size, n, 3), valid_count=counts, score_threshold=0.1, max_output_size=200)


@pytest.mark.gpu
def test_gpu_size_known_at_run_time():
    run = compiled_for_any_size(Gpu, clustered_detections(1, 5))
    for n in (0, 1, TILE, TILE + 1, 5000, 50_000):
        arrays = clustered_detections(n, 5)
        assert_equal(run(*arrays), class_by_class.batched_nms(*arrays, 0.5))


# --- helpers


class Gpu:
    target, device = "cuda", tvm.cuda()


def check_on_gpu(arrays, iou_threshold=0.5, **options):
    function, inputs = function_of(arrays, iou_threshold, **options)
    library = relay.build(tvm.IRModule.from_expr(function), Gpu.target)
    expected = reference.batched_nms(*arrays, iou_threshold, **options)
    assert_equal(run_graph(library, Gpu.device, *inputs), expected)


def run_graph(library, device, *inputs):
    return run_module(graph_executor.GraphModule(library["default"](device)), device, *inputs)


def run_module(module, device, *inputs):
    for number, value in enumerate(inputs):
        module.set_input(number, tvm.nd.array(value, device))
    module.run()
    return [module.get_output(i).numpy() for i in range(2)]


def compiled_for_any_size(cuda, arrays, **options):
    function, _ = function_of(arrays, dynamic=True, **options)
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), cuda.target)
    machine = VirtualMachine(executable, cuda.device, memory_cfg="naive")

    def run(*arrays):
        outputs = machine.invoke("main", *(tvm.nd.array(array, cuda.device) for array in arrays))
        return [output.numpy() for output in outputs]

    return run
