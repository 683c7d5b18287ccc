"""Pasting masks, on LLVM and the emulated CUDA device: as torchvision and the oracle."""

import functools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection.roi_heads import paste_masks_in_image

import topi_ext
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.objects import objects
from topi_ext.paste_masks import reference

import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

NAN, INF = float("nan"), float("inf")
TOLERANCE = {"rtol": 1e-5, "atol": 2e-6}


def function_of(masks, boxes, image_size, threshold=None, dynamic=False):
    shapes = [((relay.Any(), *array.shape[1:]) if dynamic else array.shape) for array in (masks, boxes)]
    variables = [
        relay.var(name, shape=shape, dtype=str(array.dtype))
        for name, shape, array in zip(("masks", "boxes"), shapes, (masks, boxes))
    ]
    return relay.Function(variables, topi_ext.paste_masks(*variables, image_size, threshold=threshold))


def compiled(function, target="llvm"):
    executable = relay.vm.compile(tvm.IRModule.from_expr(function), target)
    return VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")


def on_llvm(masks, boxes, *args, target="llvm", **options):
    machine = compiled(function_of(masks, boxes, *args, **options), target)
    return machine.invoke("main", *map(tvm.nd.array, (masks, boxes))).numpy()


@pytest.fixture(params=["llvm", "cuda"])
def run(request):
    """Runs the operator on a target."""
    if request.param == "llvm":
        return on_llvm
    cuda = request.getfixturevalue("emulated_cuda")

    def on_cuda(masks, boxes, *args, dynamic=False, **options):
        function = function_of(masks, boxes, *args, dynamic=dynamic, **options)
        return cuda.run_relay(function, masks, boxes, executor="vm" if dynamic else "graph")[0]

    return on_cuda


def assert_close(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def by_torchvision(masks, boxes, image_size):
    return paste_masks_in_image(torch.from_numpy(masks), torch.from_numpy(boxes), image_size).numpy()


# --- what torchvision answers


@pytest.mark.parametrize("side", [28, 1, 7])
@pytest.mark.parametrize("image_size", [(60, 80), (61, 83), (61, 90), (3, 2)])
def test_as_torchvision(run, image_size, side):
    masks, boxes = objects(12, image_size, side)
    expected = by_torchvision(masks, boxes, image_size)
    assert_close(run(masks, boxes, image_size), expected)
    assert_close(reference.paste_masks(masks, boxes, image_size), expected)


@pytest.mark.parametrize("image_size", [(64, 80), (61, 83)])
@pytest.mark.parametrize("threshold", [0.5, 0])
def test_threshold(run, threshold, image_size):
    masks, boxes = objects(12, image_size)
    pasted = run(masks, boxes, image_size)
    found = run(masks, boxes, image_size, threshold=threshold)
    assert found.dtype == "uint8"
    np.testing.assert_array_equal(found, pasted >= threshold)


def test_one_by_one():
    """A mask of ones at its own size: half of the border of zeros is on either side of its edge."""
    masks, boxes = np.ones((1, 1, 28, 28), "float32"), np.array([[10, 10, 38, 38]], "float32")
    found = on_llvm(masks, boxes, (50, 50))[0, 0]
    assert (found[10:39, 10:39] >= 0.2).all() and (found[11:38, 10:39] >= 0.5).all()
    found[10:39, 10:39] = 0
    assert not found.any()


def test_half_precision(run):
    masks, boxes = (array.astype("float16") for array in objects(8, (60, 80)))
    expected = by_torchvision(masks.astype("float32"), boxes.astype("float32"), (60, 80))
    assert_close(run(masks, boxes, (60, 80)), expected)


@pytest.mark.parametrize("flags", [(), ("-ffp-contract=fast", "-mfma")])
def test_boxes_that_grow_to_whole_numbers(emulated_cuda, flags):
    """Of each the left corner is -1, or just short of it, which is truncated to 0."""
    emulated_cuda.flags = flags
    k = np.arange(1, 40, dtype="float32")[:, None]
    boxes = np.concatenate([k - 1, k * 0, 29 * k - 1, k * 0 + 28], axis=1)
    masks = np.ones((len(boxes), 1, 28, 28), "float32")
    image_size = (2, 1200)
    expected = by_torchvision(masks, boxes, image_size)
    (found,) = emulated_cuda.run_relay(function_of(masks, boxes, image_size), masks, boxes)
    assert_close(found, expected)
    assert_close(on_llvm(masks, boxes, image_size, target="llvm -mattr=+fma"), expected)


# --- shapes, types, and boxes of no place


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_masks(run, count, dynamic):
    masks, boxes = objects(count, (40, 30))
    found = run(masks, boxes, (40, 30), dynamic=dynamic)
    assert_close(found, reference.paste_masks(masks, boxes, (40, 30)))


NOWHERE = [
    [100, 5, 120, 25],
    [-90, 5, -70, 25],
    [5, -60, 25, -45],
    [5, 70, 25, 75],
    [25, 5, 5, 25],
    [NAN, 5, 25, 25],
    [5, 5, INF, 25],
    [-INF, 5, INF, 25],
    [3e38, 5, 3.1e38, 25],
]


def test_a_box_of_no_place_leaves_the_image_empty(run):
    boxes = np.array([*NOWHERE, [5, 5, 25, 25]], "float32")
    found = run(np.ones((len(boxes), 1, 28, 28), "float32"), boxes, (40, 60))
    np.testing.assert_array_equal(found.any(axis=(1, 2, 3)), [*[False] * len(NOWHERE), True])


@pytest.mark.parametrize(
    "shapes, dtypes, reason",
    [
        ([(3, 28, 28), (3, 4)], {}, "masks must have the shape"),
        ([(3, 2, 28, 28), (3, 4)], {}, "masks must have the shape"),
        ([(3, 1, 28, 14), (3, 4)], {}, "masks must have the shape"),
        ([(3, 1, relay.Any(), relay.Any()), (3, 4)], {}, "with a known M"),
        ([(3, 1, 28, 28), (3, 5)], {}, "boxes must have the shape"),
        ([(3, 1, 28, 28), (2, 4)], {}, "as many masks as boxes: masks has 3, boxes has 2"),
        ([(3, 1, 28, 28), (3, 4)], {0: "uint8"}, "masks must be of type float32 or float16, not uint8"),
        ([(3, 1, 28, 28), (3, 4)], {1: "int32"}, "boxes must be of type"),
    ],
)
def test_what_it_cannot_take_is_refused(shapes, dtypes, reason):
    variables = [relay.var(f"x{i}", shape=s, dtype=dtypes.get(i, "float32")) for i, s in enumerate(shapes)]
    call = topi_ext.paste_masks(*variables, (40, 60))
    with pytest.raises(tvm.TVMError, match=reason):
        relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, call)))


def test_numbers_that_differ_at_run_time_are_refused():
    masks, boxes = objects(3, (40, 60))
    with pytest.raises(tvm.TVMError, match="there must be as many masks as boxes"):
        on_llvm(masks, boxes[:2], (40, 60), dynamic=True)


@pytest.mark.parametrize(
    "wrong", [{"image_size": (0, 5)}, {"image_size": (2**16, 2**16)}, {"threshold": NAN}]
)
def test_wrong_attributes_are_refused(wrong):
    variables = [relay.var("masks", shape=(1, 1, 28, 28)), relay.var("boxes", shape=(1, 4))]
    with pytest.raises(ValueError, match="paste_masks: "):
        topi_ext.paste_masks(*variables, **{"image_size": (40, 60), **wrong})


# --- any boxes

CORNER = st.floats(-50, 80, width=32) | st.integers(-9, 40).map(float) | st.floats(width=32)


@functools.cache
def small(threshold):
    masks, boxes = objects(1, (17, 23), 4)
    return compiled(function_of(masks, boxes, (17, 23), threshold, dynamic=True))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(CORNER, CORNER, CORNER, CORNER), max_size=6), st.integers(0, 9))
def test_any_boxes(corners, seed):
    boxes = np.array(corners, "float32").reshape(-1, 4)
    masks = np.random.default_rng(seed).random((len(boxes), 1, 4, 4), "float32")
    found = small(None).invoke("main", *map(tvm.nd.array, (masks, boxes))).numpy()
    assert_close(found, reference.paste_masks(masks, boxes, (17, 23)))


@pytest.mark.parametrize("image_size", [(17, 23), (16, 24)])
def test_any_boxes_on_cuda(emulated_cuda, image_size):
    values = np.array([NAN, INF, -INF, 1e9, -3e38, 2e7, 0, 3.5, 8, -7, 13, 40], "float32")
    boxes = np.random.default_rng(0).choice(values, (60, 4), p=[0.02] * 6 + [0.88 / 6] * 6)
    masks = np.random.default_rng(1).random((60, 1, 5, 5), "float32")
    (found,) = emulated_cuda.run_relay(function_of(masks, boxes, image_size), masks, boxes)
    assert_close(found, reference.paste_masks(masks, boxes, image_size))


# --- the CUDA kernel itself


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize(
    "threshold, stores", [(None, "*(float4*)(paste_masks"), (0.5, "*(uint4*)(paste_masks")]
)
def test_compiles_without_spills(emulated_cuda, tmp_path, threshold, stores):
    masks, boxes = objects(3, (800, 1333))
    function = function_of(masks, boxes, (800, 1333), threshold)
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    assert source.count(stores) == 1 and "__syncthreads" not in source
    assert_compiles_without_spills(source, tmp_path, kernels=1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("image_size", [(800, 1333), (801, 1333)])
def test_on_gpu(image_size, dtype):
    masks, boxes = objects(100, image_size)
    masks = masks.astype(dtype)
    expected = by_torchvision(masks.astype("float32"), boxes, image_size)
    for threshold in (None, 0.5):
        function = function_of(masks, boxes, image_size, threshold, dynamic=True)
        executable = relay.vm.compile(
            tvm.IRModule.from_expr(function), tvm.target.Target("cuda", host="llvm")
        )
        machine = VirtualMachine(executable, tvm.cuda(0))
        found = machine.invoke(
            "main", *(tvm.nd.array(array, tvm.cuda(0)) for array in (masks, boxes))
        ).numpy()
        if threshold is None:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        else:
            near = np.abs(expected - threshold) < 1e-5
            np.testing.assert_array_equal(found[~near], (expected >= threshold)[~near])
