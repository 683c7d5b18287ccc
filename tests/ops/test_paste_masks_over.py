"""Pasting masks over images, and images of one value, on LLVM and the emulated CUDA device."""

import shutil

import numpy as np
import pytest

import topi_ext
from tests.helpers import module, run
from tests.ops.nvcc import assert_compiles_without_spills
from tests.ops.objects import objects
from tests.ops.test_paste_masks import NAN, NOWHERE, assert_close
from topi_ext.paste_masks_over import reference

import tvm
from tvm import relay


def function_of(masks, boxes, images, threshold=None):
    variables = [
        relay.var(name, shape=array.shape, dtype=str(array.dtype))
        for name, array in zip(("masks", "boxes", "images"), (masks, boxes, images))
    ]
    return relay.Function(variables, topi_ext.paste_masks_over(*variables, threshold=threshold))


def images_for(masks, image_size, threshold=None):
    dtype = "float32" if threshold is None else "uint8"
    return np.random.default_rng(5).integers(2, 99, (len(masks), 1, *image_size)).astype(dtype)


@pytest.fixture(params=["llvm", "cuda"])
def on_target(request):
    """Runs a function on a target."""
    if request.param == "llvm":
        return lambda function, *arrays: run(tvm.IRModule.from_expr(function), *arrays)[0]
    cuda = request.getfixturevalue("emulated_cuda")
    return lambda function, *arrays: cuda.run_relay(function, *arrays)[0]


@pytest.mark.parametrize("threshold", [None, 0.5, 0])
@pytest.mark.parametrize("image_size", [(61, 83), (3, 2)])
def test_only_boxes_are_written(on_target, image_size, threshold):
    masks, boxes = objects(12, image_size, 7)
    images = images_for(masks, image_size, threshold)
    found = on_target(function_of(masks, boxes, images, threshold), masks, boxes, images)
    assert_close(found, reference.paste_masks_over(masks, boxes, images, threshold=threshold))


@pytest.mark.parametrize("threshold", [None, 0.5, 0])
def test_over_empty_images_it_is_paste_masks(on_target, threshold):
    masks, boxes = (array.astype("float16") for array in objects(9, (40, 60)))
    dtype, value = ("float32", 0) if threshold is None else ("uint8", threshold <= 0)
    variables = [
        relay.var(name, shape=array.shape, dtype="float16")
        for name, array in (("masks", masks), ("boxes", boxes))
    ]
    empty = topi_ext.full_after(variables[1], (9, 1, 40, 60), dtype, value)
    both = relay.Tuple(
        [
            topi_ext.paste_masks_over(*variables, empty, threshold=threshold),
            topi_ext.paste_masks(*variables, (40, 60), threshold=threshold),
        ]
    )
    difference = relay.max(relay.abs(relay.cast(both[0], "float32") - relay.cast(both[1], "float32")))
    assert on_target(relay.Function(variables, difference), masks, boxes) == 0


def test_a_box_of_no_place_leaves_its_image(on_target):
    boxes = np.array([*NOWHERE, [NAN] * 4], "float32")
    masks = np.ones((len(boxes), 1, 4, 4), "float32")
    images = images_for(masks, (40, 60))
    np.testing.assert_array_equal(on_target(function_of(masks, boxes, images), masks, boxes, images), images)


def test_no_masks(on_target):
    arrays = [np.zeros(shape, "float32") for shape in ((0, 1, 4, 4), (0, 4), (0, 1, 5, 6))]
    assert on_target(function_of(*arrays), *arrays).shape == (0, 1, 5, 6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (4, 64, 800), (0, 4)])
@pytest.mark.parametrize("dtype, value", [("float32", 0.25), ("uint8", 1)])
def test_full_after(on_target, shape, dtype, value):
    x = relay.var("x", shape=(3,))
    found = on_target(
        relay.Function([x], topi_ext.full_after(x, shape, dtype, value)), np.zeros(3, "float32")
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.full(shape, value, dtype))


def test_two_calls_are_two_tensors():
    x = relay.var("x", shape=(3,))
    mod = module(x, relay.Tuple([topi_ext.full_after(x, (2,), "float32") for _ in range(2)]))
    after = tvm.transform.Sequential([relay.transform.EliminateCommonSubexpr()])(mod)
    first, second = after["main"].body.fields
    assert not first.same_as(second)


@pytest.mark.parametrize(
    "shape, dtype, threshold",
    [
        ((2, 1, 5, 6), "float32", None),
        ((3, 2, 5, 6), "float32", None),
        ((3, 5, 6), "float32", None),
        ((3, 1, 5, relay.Any()), "float32", None),
        ((3, 1, 5, 6), "uint8", None),
        ((3, 1, 5, 6), "float32", 0.5),
    ],
)
def test_other_images_are_refused(shape, dtype, threshold):
    masks, boxes = relay.var("masks", shape=(3, 1, 4, 4)), relay.var("boxes", shape=(3, 4))
    call = topi_ext.paste_masks_over(
        masks, boxes, relay.var("images", shape=shape, dtype=dtype), threshold=threshold
    )
    with pytest.raises(tvm.TVMError, match="images must have the shape"):
        relay.transform.InferType()(tvm.IRModule.from_expr(call))


def test_wrong_attributes_are_refused():
    x = relay.var("x", shape=(3, 1, 4, 4))
    with pytest.raises(ValueError, match="paste_masks_over: the threshold is NaN"):
        topi_ext.paste_masks_over(x, x, x, threshold=NAN)
    with pytest.raises(ValueError, match="dtype must be float32 or uint8, not 'int8'"):
        topi_ext.full_after(x, (3,), "int8")
    with pytest.raises(ValueError, match="no extent of the shape must be negative"):
        topi_ext.full_after(x, (3, -1), "uint8")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_compiles_without_spills(emulated_cuda, tmp_path, threshold):
    masks, boxes = objects(3, (800, 1333))
    dtype = "float32" if threshold is None else "uint8"
    variables = [relay.var(name, shape=array.shape) for name, array in (("masks", masks), ("boxes", boxes))]
    empty = topi_ext.full_after(variables[1], (3, 1, 800, 1333), dtype)
    function = relay.Function(variables, topi_ext.paste_masks_over(*variables, empty, threshold=threshold))
    relay.build(tvm.IRModule.from_expr(function), emulated_cuda.target)
    source = emulated_cuda.sources[-1]
    stores = "*(float4*)(full_after" if threshold is None else "*(uint4*)(full_after"
    assert source.count(stores) == 1 and "__syncthreads" not in source
    assert_compiles_without_spills(source, tmp_path, kernels=2)
