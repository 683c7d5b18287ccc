"""Encoding masks, on LLVM and the emulated CUDA device: as pycocotools encodes what paste_masks gives."""

import functools
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.objects import objects
from topi_ext.encode_masks import reference
from topi_ext.encode_masks.kernel import default_capacity
from topi_ext.paste_masks.reference import paste_masks

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
AMPLE = 4000  # bytes, for any mask here


def function_of(
    masks, boxes, image_size, threshold=0.5, capacity=AMPLE, dynamic=False, forms=("rle", "bits")
):
    """The pasted images, and what they are encoded as."""
    shapes = [((relay.Any(), *array.shape[1:]) if dynamic else array.shape) for array in (masks, boxes)]
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in zip(("masks", "boxes"), shapes, (masks, boxes))
    ]
    pasted = topi_ext.paste_masks(*variables, image_size, threshold=threshold)
    encoded = [
        topi_ext.encode_masks(
            *variables,
            image_size,
            threshold=threshold,
            form=form,
            capacity=capacity if form == "rle" else None,
        )
        for form in forms
    ]
    return relay.Function(variables, relay.Tuple([pasted, *encoded]))


def compiled(function, target="llvm"):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    return VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")


def invoked(machine, *arrays):
    return [output.numpy() for output in machine.invoke("main", *map(tvm.nd.array, arrays))]


def on_llvm(masks, boxes, *args, target="llvm", **options):
    return invoked(compiled(function_of(masks, boxes, *args, **options), target), masks, boxes)


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target: the pasted images, the run lengths, the bits."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(masks, boxes, *args, dynamic=False, **options):
        function = function_of(masks, boxes, *args, dynamic=dynamic, **options)
        return cuda.run_relay(function, masks, boxes, executor="vm" if dynamic else "graph")

    return on_cuda


def strings(rows):
    return [row.tobytes().rstrip(b"\0") for row in rows]


def by_pycocotools(images):
    return [coco.encode(np.asfortranarray(image))["counts"] for image in images[:, 0]]


def assert_encoded(found):
    images, rows, bits = found
    assert rows.dtype == bits.dtype == "uint8"
    assert strings(rows) == by_pycocotools(images)
    np.testing.assert_array_equal(bits, np.packbits(images[:, 0], axis=2))


def objects_and_edges(image_size, side=7):
    """Objects, and masks that cover the image, or touch one or two of its borders."""
    masks, boxes = objects(12, image_size, side)
    height, width = image_size
    boxes[:6] = [
        [-9, -9, width + 9, height + 9],
        [-9, 2, width / 2, height - 2],
        [width / 2, 1, width + 9, height],
        [1, -9, width - 1, height / 2],
        [1, height / 2, width - 1, height + 9],
        [width / 3, -9, width / 2, height + 9],
    ]
    masks[:2] = 1
    masks[6] = 0
    return masks, boxes


# --- what pycocotools encodes


@pytest.mark.parametrize("threshold", [0.5, 0, -1, 2])
@pytest.mark.parametrize("image_size", [(60, 80), (64, 33), (31, 70), (3, 2), (1, 1)])
def test_as_pycocotools(run, image_size, threshold):
    masks, boxes = objects_and_edges(image_size)
    found = run(masks, boxes, image_size, threshold)
    assert_encoded(found)
    for form, rows in zip(("rle", "bits"), found[1:]):
        capacity = AMPLE if form == "rle" else None
        options = {"threshold": threshold, "form": form, "capacity": capacity}
        np.testing.assert_array_equal(rows, reference.encode_masks(masks, boxes, image_size, **options))
        np.testing.assert_array_equal(reference.decoded(rows, image_size, form), found[0][:, 0])


def test_more_columns_than_threads(run):
    """Runs go on from the columns that the threads of a block take first to those that they take next."""
    masks, boxes = objects_and_edges((9, 1100), 28)
    masks[2:] = masks[2:] > 0.4
    assert_encoded(run(masks, boxes, (9, 1100), capacity=2 * AMPLE))


def test_half_precision(run):
    assert_encoded(run(*(array.astype("float16") for array in objects_and_edges((60, 80))), (60, 80)))


@pytest.mark.parametrize("flags", [(), ("-ffp-contract=fast", "-mfma")])
def test_the_same_bits_on_all_targets(emulated_cuda, flags):
    """Also where a compiler may fuse products with sums: where all pixels are at the threshold, whether one
    reaches it is a matter of rounding."""
    emulated_cuda.flags = flags
    boxes = objects(20, (40, 50))[1]
    masks = np.full((20, 1, 28, 28), 0.7, "float32")
    threshold = masks.flat[0]
    found = emulated_cuda.run_relay(function_of(masks, boxes, (40, 50), threshold), masks, boxes)
    assert_encoded(found)
    inside = paste_masks(masks, boxes, (40, 50)) > 0.699
    assert 0.1 < found[0][inside].mean() < 0.9
    for target in ("llvm", "llvm -mattr=+fma"):
        for mine, other in zip(found, on_llvm(masks, boxes, (40, 50), threshold, target=target)):
            np.testing.assert_array_equal(mine, other)


# --- capacity


def test_a_mask_that_does_not_fit_is_not_cut(run):
    masks, boxes = objects_and_edges((60, 80))
    ample = strings(run(masks, boxes, (60, 80))[1])
    lengths = sorted(map(len, ample))
    for capacity in (lengths[0], lengths[5], lengths[5] - 1, 1):
        rows = run(masks, boxes, (60, 80), capacity=capacity)[1]
        assert rows.shape == (12, capacity)
        assert strings(rows) == [string if len(string) <= capacity else b"" for string in ample]
        options = {"capacity": capacity}
        np.testing.assert_array_equal(rows, reference.encode_masks(masks, boxes, (60, 80), **options))


@pytest.mark.parametrize("height", [90, 8192])
def test_default_capacity(height):
    """Enough for four runs in each column, whatever their lengths are."""
    rng = np.random.default_rng(0)
    for width in (1, 2, 40):
        for gap in (0, 0.1, 0.9):
            image = np.zeros((1, height, width), "uint8")
            for column in np.flatnonzero(rng.random(width) >= gap):
                for begin, end in np.sort(rng.choice(height, 8, replace=False)).reshape(4, 2):
                    image[0, begin:end, column] = 1
            (string,) = strings(reference.encoded(image))
            assert string == coco.encode(np.asfortranarray(image[0]))["counts"]
            assert len(string) <= default_capacity(width)
    masks, boxes = objects_and_edges((60, 80))
    assert on_llvm(masks, boxes, (60, 80), capacity=None)[1].shape == (12, default_capacity(80))


# --- shapes, types, and boxes of no place


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_masks(run, count, dynamic):
    found = run(*objects(count, (40, 30)), (40, 30), dynamic=dynamic)
    assert [len(each) for each in found] == [count] * 3
    assert_encoded(found)


@pytest.mark.parametrize("threshold", [0.5, 0])
def test_boxes_of_no_place(run, threshold):
    boxes = [[100, 5, 120, 25], [5, -60, 25, -45], [25, 5, 5, 25], [NAN, 5, 25, 25], [5, 5, INF, 25]]
    boxes = np.array([*boxes, [3e38, 5, 3.1e38, 25], [-3e8, -3e8, 3e8, 3e8]], "float32")
    found = run(np.ones((len(boxes), 1, 28, 28), "float32"), boxes, (40, 60), threshold)
    assert_encoded(found)
    empty = coco.encode(np.full((40, 60), threshold <= 0, "uint8", order="F"))["counts"]
    full = coco.encode(np.ones((40, 60), "uint8", order="F"))["counts"]
    assert strings(found[1]) == [*[empty] * 6, full]


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(3, 28, 28), (3, 4)], {}, "masks must have the shape"),
        ([(3, 1, 28, 28), (2, 4)], {}, "as many masks as boxes: masks has 3, boxes has 2"),
        ([(3, 1, 28, 28), (3, 4)], {0: "uint8"}, "masks must be of type float32 or float16, not uint8"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.encode_masks(*variables, (40, 60))
    with pytest.raises(tvm.TVMError, match=f"topi_ext.encode_masks: .*{reason}"):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


def test_numbers_that_differ_at_run_time_are_refused():
    masks, boxes = objects(3, (40, 60))
    with pytest.raises(tvm.TVMError, match="there must be as many masks as boxes"):
        on_llvm(masks, boxes[:2], (40, 60), dynamic=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_size": (0, 5)},
        {"threshold": NAN},
        {"form": "png"},
        {"capacity": 0},
        {"capacity": 9, "form": "bits"},
    ],
)
def test_wrong_attributes_are_refused(wrong):
    variables = [relay.var("masks", shape=(1, 1, 28, 28)), relay.var("boxes", shape=(1, 4))]
    with pytest.raises(ValueError, match="encode_masks: "):
        topi_ext.encode_masks(*variables, **{"image_size": (40, 60), **wrong})


# --- any boxes

CORNER = st.floats(-50, 80, width=32) | st.integers(-9, 40).map(float) | st.floats(width=32)


@functools.cache
def small(threshold):
    return compiled(function_of(*objects(1, (17, 23), 4), (17, 23), threshold, dynamic=True))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(CORNER, CORNER, CORNER, CORNER), max_size=6),
    st.integers(0, 9),
    st.sampled_from([0.5, 0.0]),
)
def test_any_boxes(corners, seed, threshold):
    boxes = np.array(corners, "float32").reshape(-1, 4)
    masks = np.random.default_rng(seed).random((len(boxes), 1, 4, 4), "float32")
    assert_encoded(invoked(small(threshold), masks, boxes))


@pytest.mark.parametrize("image_size", [(17, 23), (64, 24)])
def test_any_boxes_on_cuda(emulated_cuda, image_size):
    values = np.array([NAN, INF, -INF, 1e9, -3e38, 2e7, 0, 3.5, 8, -7, 13, 40], "float32")
    boxes = np.random.default_rng(0).choice(values, (60, 4), p=[0.02] * 6 + [0.88 / 6] * 6)
    masks = np.random.default_rng(1).random((60, 1, 5, 5), "float32")
    assert_encoded(emulated_cuda.run_relay(function_of(masks, boxes, image_size), masks, boxes))


# --- the CUDA kernels themselves


def test_in_any_order_of_threads(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    masks, boxes = objects_and_edges((70, 600))
    function = function_of(masks, boxes, (70, 600), capacity=2000, forms=["rle"])
    emulated_cuda.assert_same_in_any_order(
        lambda: emulated_cuda.run_relay(function, masks, boxes), seeds=range(2)
    )


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("form, kernels", [("rle", 2), ("bits", 1)])
def test_compiles_without_spills(emulated_cuda, tmp_path, form, kernels):
    variables = [relay.var("masks", shape=(3, 1, 28, 28)), relay.var("boxes", shape=(3, 4))]
    function = relay.Function(variables, topi_ext.encode_masks(*variables, (800, 1333), form=form))
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    assert_compiles_without_spills(emulated_cuda.sources[-1], tmp_path, kernels=kernels)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("image_size", [(800, 1333), (801, 1334)])
def test_on_gpu(image_size, dtype):
    masks, boxes = (array.astype(dtype) for array in objects_and_edges(image_size, 28))
    for threshold in (0.5, 0):
        function = function_of(masks, boxes, image_size, threshold, capacity=200_000, dynamic=True)
        executable = relay.vm.compile(
            tvm.IRModule.from_expr(function), tvm.target.Target("cuda", host="llvm")
        )
        machine = VirtualMachine(executable, tvm.cuda(0))
        arrays = (tvm.nd.array(array, tvm.cuda(0)) for array in (masks, boxes))
        found = [output.numpy() for output in machine.invoke("main", *arrays)]
        assert_encoded(found)
        for mine, other in zip(found, on_llvm(masks, boxes, image_size, threshold, capacity=200_000)):
            np.testing.assert_array_equal(mine, other)
