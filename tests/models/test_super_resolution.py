"""Super-resolution networks after `subpixel_pipeline`: equal results, and no kernel that only moves data."""

import numpy as np
import pytest
import torch

import frontends
from tests.helpers import ops
from tests.models.super_resolution import channels_of, super_resolution_model
from tvm_passes import subpixel_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph, children

import tvm
from tvm import relay
from tvm.contrib import graph_executor

SMALL = {
    "thread": {"channels": 16},
    "espcn": {},
    "edsr_x2": {"channels": 16, "blocks": 1, "res_scale": 0.1},
    "edsr_x4": {"channels": 16, "blocks": 1, "prelu": True, "clamp": True},
    "rcan": {"channels": 16, "groups": 1, "blocks": 1, "reduction": 4},
    "unet": {},
    "rrdb": {"channels": 16, "growth": 8, "blocks": 1},
    "interpolated": {"channels": 16, "blocks": 1},
}
CUDA = "cuda -arch=sm_90"
MOVE_DATA = {"layout_transform", "transpose", "reshape", "nn.depth_to_space", "nn.space_to_depth", "copy"}
MOVE_DATA |= {"cast", "concatenate", "strided_slice", "split", "take", "squeeze", "expand_dims"}
CONVOLUTIONS = {"nn.conv2d", "topi_ext.conv2d_nhwc", "topi_ext.conv2d_nhwc_in_place"}
TRANSPOSES = {"layout_transform", "transpose"}


def imported(name):
    """The model, an image, and the module with its weights bound."""
    model = super_resolution_model(name, **SMALL[name])
    x = torch.rand(1, channels_of(name), 24, 32, generator=torch.Generator().manual_seed(0))
    mod, params = frontends.from_pytorch(model, x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return model, x, mod


def run(mod, x, target="llvm"):
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target)
    module = graph_executor.GraphModule(library["default"](tvm.device(str(tvm.target.Target(target).kind))))
    module.set_input(0, x.numpy())
    module.run()
    return module.get_output(0).numpy()


def kernels(mod):
    """The operators of each kernel, as TVM fuses them for CUDA; reshapes alone are no kernels."""
    with tvm.target.Target(CUDA, host="llvm"), tvm.transform.PassContext(opt_level=3):
        for step in (relay.transform.InferType(), relay.transform.FuseOps(), relay.transform.InferType()):
            mod = step(mod)
    fused = [
        node.op for node in Graph(mod["main"]).nodes if isinstance(getattr(node, "op", None), relay.Function)
    ]
    found = [{op_name(node) for node in Graph(each.body).nodes} - {None} for each in fused]
    return [each for each in found if each != {"reshape"}]


def between_convolutions(mod):
    """The operators that have a convolution both before and after them."""
    graph = Graph(mod["main"])
    after, before = set(), set()
    for node in graph.nodes:
        if any(child in after or op_name(child) in CONVOLUTIONS for child in children(node)):
            after.add(node)
    for node in reversed(graph.nodes):
        if any(user in before or op_name(user) in CONVOLUTIONS for user in graph.users(node)):
            before.add(node)
    return {op_name(node) for node in after & before}


@pytest.mark.parametrize("name", SMALL)
def test_on_tensor_cores(name):
    model, x, mod = imported(name)
    after = subpixel_pipeline(CUDA)(mod)
    assert relay.transform.InferType()(after)["main"].checked_type == mod["main"].checked_type
    assert "nn.conv2d" not in ops(after)
    assert not TRANSPOSES & between_convolutions(after)
    found = kernels(after)
    assert not [each for each in found[1:-1] if each <= MOVE_DATA]  # the first and last are from and to NCHW
    with torch.no_grad():
        exact = model.double()(x.double()).numpy()
        half = model.half()(x.half()).double().numpy()
    # The operator's kernels for LLVM compute what those for CUDA do: float32 sums, rounded once.
    assert np.abs(run(after, x) - exact).max() <= 2 * np.abs(half - exact).max()


@pytest.mark.parametrize("target", [None, "llvm"])
@pytest.mark.parametrize("name", SMALL)
def test_in_float32(name, target):
    model, x, mod = imported(name)
    after = subpixel_pipeline(target)(mod)
    if target is None:
        assert not TRANSPOSES & between_convolutions(after)
    with torch.no_grad():
        expected = model(x).numpy()
    np.testing.assert_allclose(run(after, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["thread", "rcan", "unet", "rrdb"])
def test_a_second_time_changes_nothing(name):
    _, _, mod = imported(name)
    once = subpixel_pipeline(CUDA)(mod)
    twice = subpixel_pipeline(CUDA)(once)
    assert ops(twice) == ops(once)


def test_of_bfloat16():
    _, _, mod = imported("thread")
    after = relay.transform.InferType()(subpixel_pipeline(CUDA, "bfloat16")(mod))
    assert "nn.conv2d" not in ops(after)
    dtypes = {node.checked_type.dtype for node in Graph(after["main"]).nodes if op_name(node) in CONVOLUTIONS}
    assert dtypes == {"bfloat16"}


def test_float32_on_cuda_keeps_its_convolutions():
    _, _, mod = imported("thread")
    after = subpixel_pipeline(CUDA, "float32")(mod)
    assert "topi_ext.conv2d_nhwc" not in ops(after) and "cast" not in ops(after)
    assert not TRANSPOSES & between_convolutions(after)


def test_a_gpu_without_tensor_cores_keeps_float32():
    _, _, mod = imported("thread")
    after = subpixel_pipeline("cuda -arch=sm_61")(mod)
    assert "topi_ext.conv2d_nhwc" not in ops(after) and "cast" not in ops(after)


def test_the_current_target_is_the_default():
    _, _, mod = imported("espcn")
    with tvm.target.Target(CUDA):
        assert "topi_ext.conv2d_nhwc" in ops(subpixel_pipeline()(mod))
