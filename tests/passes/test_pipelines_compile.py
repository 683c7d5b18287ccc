"""What a pipeline leaves compiles for its target: small networks of every trait, and torchvision's."""

import functools

import numpy as np
import pytest
import torch
from torchvision import models
from torchvision.models import resnet, segmentation
from torchvision.models.convnext import CNBlockConfig

import frontends
from tests.helpers import ops
from tests.models import traits
from tests.models.traits import GROUPS
from tvm_passes import default_pipeline, detection_pipeline, runtime, subpixel_pipeline

import tvm
from tvm import relay

HOPPER = "cuda -arch=sm_90"
PIPELINES = {
    "default, CUDA": (lambda: default_pipeline(), HOPPER),
    "detection, float16": (lambda: detection_pipeline(HOPPER, outputs="padded"), HOPPER),
    "detection, bfloat16": (lambda: detection_pipeline(HOPPER, "bfloat16", outputs="padded"), HOPPER),
    "subpixel, float32": (lambda: subpixel_pipeline(HOPPER, "float32"), HOPPER),
}
MODELS = {  # of torchvision: blocks of each family, and the least picture that it takes
    "resnet": (lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]), 64),
    "resnext": (lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=8), 64),
    "densenet": (lambda: models.DenseNet(8, (2, 2, 2, 2), 16), 64),
    "swin": (lambda: models.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=9), 32),
    "convnext": (lambda: models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]), 64),
    "maxvit": (lambda: models.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.0, num_classes=9), 64),
    **{
        name: (functools.partial(getattr(models, name), weights=None), 64)
        for name in ("regnet_y_400mf", "shufflenet_v2_x0_5", "mobilenet_v3_small", "squeezenet1_1")
    },
    "googlenet": (lambda: models.googlenet(weights=None, init_weights=False), 64),
    "deeplab": (lambda: segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None), 64),
    "lraspp": (lambda: segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None), 64),
}
SLOW = ("default, CUDA", "detection, bfloat16", "subpixel, float32")


def imported(model, x):
    mod, params = frontends.from_pytorch(model, x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return relay.transform.InferType()(mod)


@pytest.fixture(scope="module")
def groups():
    """{name: (model, picture, module)}, each imported when it is first wanted."""
    known = {}

    def give(name):
        if name not in known:
            model, x = traits.group(name)
            known[name] = model, x, imported(model, x)
        return known[name]

    return give


@pytest.fixture
def cuda_source_only(monkeypatch):
    """TVM's code generation for CUDA without nvcc, which takes most of the time."""
    compiler = tvm.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    tvm.register_func("tvm_callback_cuda_compile", lambda code, *_: b"", override=True)
    yield
    if compiler is not None:
        tvm.register_func("tvm_callback_cuda_compile", compiler, override=True)
    else:
        tvm._ffi.registry.remove_global_func("tvm_callback_cuda_compile")


def compiled(mod, pipeline):
    passes, target = PIPELINES[pipeline]
    return runtime.build_library(passes()(mod), target)


@pytest.mark.usefixtures("cuda_source_only")
@pytest.mark.parametrize("name", GROUPS)
def test_traits_on_tensor_cores(name, groups):
    compiled(groups(name)[2], "detection, float16")


@pytest.mark.slow
@pytest.mark.usefixtures("cuda_source_only")
@pytest.mark.parametrize("pipeline", SLOW)
@pytest.mark.parametrize("name", GROUPS)
def test_traits(name, pipeline, groups):
    compiled(groups(name)[2], pipeline)


@pytest.mark.parametrize("name", GROUPS)
def test_traits_on_llvm_are_what_torch_computes(name, groups):
    model, x, mod = groups(name)
    found = runtime.compile(default_pipeline()(mod), "llvm")(x.numpy())
    with torch.no_grad():
        expected = model(x)
    assert len(found) == len(expected)
    for each, wanted in zip(found.values(), expected):
        np.testing.assert_allclose(each, wanted.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("cuda_source_only")
@pytest.mark.parametrize("name", MODELS)
def test_networks_of_torchvision(name):
    build, size = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mod = imported(build().eval(), torch.rand(1, 3, size, size))
    compiled(mod, "detection, float16")


def test_a_convolution_in_groups_keeps_its_layout_and_the_others_do_not(groups):
    model = torch.nn.Sequential(traits.conv(), traits.conv(groups=2), traits.conv(groups=traits.CHANNELS))
    after = subpixel_pipeline(HOPPER, "float32")(imported(model.eval(), groups("convolutions")[1]))
    layouts = [
        (int(call.attrs.groups), str(call.attrs.data_layout))
        for call in _calls(relay.transform.InferType()(after), "nn.conv2d")
    ]
    assert layouts == [(1, "NHWC"), (2, "NCHW"), (traits.CHANNELS, "NHWC")]
    assert "topi_ext.conv2d_nhwc" not in ops(after)


def _calls(mod, name):
    found = []
    relay.analysis.post_order_visit(
        mod["main"], lambda node: found.append(node) if _is_call(node, name) else None
    )
    return found


def _is_call(node, name):
    return isinstance(node, relay.Call) and getattr(node.op, "name", None) == name
