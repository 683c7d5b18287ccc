"""Profiles of models: what TVM's profilers say of both executors, and what kind a kernel is of."""

import os
import tempfile

import numpy as np
import pytest

from tests.command.networks import SIZE, bright_pixels
from tests.helpers import convolution, module, numbers
from tvm_passes import runtime
from tvm_passes.runtime.profiling import KINDS, OTHER, call_ms, kind_of, ms_by_kind

from tvm import relay


def network():
    x = relay.var("x", shape=(1, 3, *SIZE))
    deep = relay.nn.relu(convolution(x, 8, 3))
    return module(x, relay.nn.softmax(relay.transpose(deep, (0, 2, 3, 1))))


def test_each_kernel_of_the_graph_executor(tmp_path, monkeypatch):
    model = runtime.compile(network(), "llvm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kernels = runtime.profile(model, numbers(1, 3, *SIZE))
    assert not os.listdir(tmp_path)
    kinds = [kernel.kind for kernel in kernels]
    assert kinds.count("convolution") == 1 and kinds[-1] == "pooling, reduction"
    assert all(kernel.ms > 0 and not kernel.name.startswith("tvmgen") for kernel in kernels)
    assert "float32[1, 3, 24, 32]" in kernels[0].shapes
    by_kind = ms_by_kind(kernels)
    assert list(by_kind) == list(dict.fromkeys(kinds))
    assert sum(by_kind.values()) == pytest.approx(sum(kernel.ms for kernel in kernels))


def test_each_kernel_of_the_virtual_machine():
    model = runtime.compile(bright_pixels()[0], "llvm")
    kernels = runtime.profile(model, np.ones((1, 3, *SIZE), "float32"))
    assert {"greater": OTHER, "argwhere": "data movement"}.items() <= {
        kernel.name: kernel.kind for kernel in kernels
    }.items()
    assert any(kernel.kind == "shapes, memory" for kernel in kernels)


def test_a_profiled_model_still_runs():
    model = runtime.compile(network(), "llvm")
    before = model(numbers(1, 3, *SIZE))
    runtime.profile(model, numbers(1, 3, *SIZE, seed=1))
    np.testing.assert_array_equal(model(numbers(1, 3, *SIZE)), before)


@pytest.mark.parametrize(
    "inputs, reason",
    [
        ([], "Model: the inputs are .*; .* is missing"),
        ([numbers(3, *SIZE)], r"must be float32 \(1, 3, 24, 32\), not float32 \(3, 24, 32\)"),
    ],
)
def test_inputs_are_checked_as_in_a_call(inputs, reason):
    """Of others, the kernels read whatever lies in memory, and the times were of that."""
    model = runtime.compile(network(), "llvm")
    with pytest.raises((TypeError, ValueError), match=reason):
        runtime.profile(model, *inputs)
    with pytest.raises(TypeError, match=r"profile: model must be a Model, as of runtime.compile, not str"):
        runtime.profile("model", *inputs)


@pytest.mark.gpu
def test_on_a_gpu():
    model = runtime.compile(network(), "cuda")
    kernels = runtime.profile(model, numbers(1, 3, *SIZE))
    assert all(0 < kernel.ms < 100 for kernel in kernels)
    assert "convolution" in {kernel.kind for kernel in kernels}


@pytest.mark.parametrize(
    "name, kind",
    [
        ("nn_contrib_conv2d_NCHWc_add_layout_transform_3", "convolution"),
        ("nn_dense_add", "convolution"),
        ("topi_ext_conv2d_nhwc", "convolution"),
        ("topi_ext_batched_nms", "NMS"),
        ("vision_non_max_suppression", "NMS"),
        ("vision_roi_align", "regions"),
        ("topi_ext_multiscale_roi_align", "regions"),
        ("topi_ext_paste_masks", "masks, keypoints"),
        ("topi_ext_preprocess_layout_transform", "preprocessing, resizing"),
        ("argsort", "sort"),
        ("nn_max_pool2d", "pooling, reduction"),
        ("max_1", "pooling, reduction"),
        ("maximum_minimum", OTHER),
        ("layout_transform_nn_depth_to_space_layout_transform_1", "data movement"),
        ("concatenate_multiply_add", "data movement"),
        ("expand_dims_cast_2", "data movement"),
        ("expand_dims_cast_multiply", OTHER),
        ("dyn_full", "data movement"),
        ("reshape_e1f0aa2b9c3d4455_", "data movement"),
        ("sigmoid", OTHER),
        ("shape_func_nn_conv2d", "shapes, memory"),
        ("VM::AllocStorage", "shapes, memory"),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind
    assert kind in (*KINDS, OTHER)


def test_calls_are_waited_for():
    order = []
    assert call_ms(lambda: order.append("call"), lambda: order.append("wait")) >= 0
    assert order[:4] == ["call", "wait"] * 2 and len(order) > 6


@pytest.mark.parametrize("make", [network, lambda: bright_pixels()[0]])
def test_a_model_that_was_saved(tmp_path, make):
    lib = runtime.build_library(make(), "llvm")
    runtime.save(tmp_path, lib, make(), "llvm")
    image = np.ones((1, 3, *SIZE), "float32")
    names = [
        [kernel.name for kernel in runtime.profile(model, image)]
        for model in (runtime.Model(lib, "cpu"), runtime.load(tmp_path))
    ]
    assert names[0] == names[1]
