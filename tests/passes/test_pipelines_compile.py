"""What a pipeline leaves compiles for its target: small networks of every trait, and torchvision's."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models import resnet, segmentation
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.googlenet import Inception
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.regnet import BlockParams
from torchvision.models.squeezenet import Fire

import frontends
from tests.models import traits
from tests.models.traits import GROUPS
from tvm_passes import default_pipeline, detection_pipeline, explain, runtime, subpixel_pipeline

import tvm
from tvm import relay

HOPPER = "cuda -arch=sm_90"
PIPELINES = {
    "default, CUDA": (lambda: default_pipeline(), HOPPER),
    "detection, float16": (lambda: detection_pipeline(HOPPER, outputs="padded"), HOPPER),
    "detection, bfloat16": (lambda: detection_pipeline(HOPPER, "bfloat16", outputs="padded"), HOPPER),
    "subpixel, float32": (lambda: subpixel_pipeline(HOPPER, "float32"), HOPPER),
}


class TwoScales(nn.Module):
    """A backbone as torchvision's segmentation networks take it."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 16, 3, 2, 1)

    def forward(self, x):
        low = self.low(x)
        return {"low": low, "high": self.high(low)}


MODELS = {  # of torchvision: a few blocks of each family, and the least image that they take
    "resnet": (lambda: resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]), 64),
    "resnext": (lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=8), 64),
    "densenet": (lambda: models.DenseNet(8, (2, 2, 2, 2), 16), 64),
    "swin": (lambda: models.SwinTransformer([4, 4], 16, [2, 1], [2, 2], [4, 4], num_classes=9), 32),
    "convnext": (lambda: models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]), 64),
    "maxvit": (lambda: models.MaxVit((32, 32), 16, 4, [16], [1], 8, 0.0, num_classes=9), 32),
    "regnet": (lambda: models.RegNet(BlockParams([1, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], 0.25)), 32),
    "shufflenet": (lambda: models.ShuffleNetV2([2, 1, 1], [8, 16, 32, 64, 64]), 64),
    "mobilenet": (
        lambda: models.MobileNetV3(
            [
                InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1),
                InvertedResidualConfig(16, 5, 32, 16, True, "HS", 1, 2, 1),
            ],
            64,
        ),
        64,
    ),
    "squeezenet": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), Fire(16, 4, 8, 8), Fire(16, 4, 8, 8)), 32),
    "googlenet": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), Inception(16, 8, 4, 8, 4, 8, 8)), 32),
    "deeplab": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), segmentation.deeplabv3.DeepLabHead(16, 9)), 32),
    "lraspp": (lambda: segmentation.lraspp.LRASPP(TwoScales(), 8, 16, 9, 8), 64),
}
SLOW = [
    *((name, pipeline) for name in GROUPS for pipeline in ("default, CUDA", "detection, bfloat16")),
    *((name, "subpixel, float32") for name in ("convolutions", "transposed convolutions", "sizes")),
]


def imported(model, x):
    mod, params = frontends.from_pytorch(model, x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return relay.transform.InferType()(mod)


@pytest.fixture(scope="module")
def groups():
    """{name: (model, image, module)}, each imported when it is first wanted."""
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
@pytest.mark.parametrize("name, pipeline", SLOW)
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


def test_weights_that_are_not_bound():
    """Convolutions stay TVM's, and are many times slower, unless `explain` is given the weights."""
    model = nn.Conv2d(3, 4, 3).eval()
    mod, params = frontends.from_pytorch(model, torch.rand(1, 3, 8, 8))
    passes = subpixel_pipeline(HOPPER)
    with pytest.warns(UserWarning, match=r"subpixel_pipeline: weights .* are parameters \(1 of them\)"):
        report = explain(mod, passes)
    refused = [outcome.reason for each in report.passes for outcome in each.refusals]
    assert any(reason.endswith("not constant: bind them to the function") for reason in refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = explain(mod, passes, params)
        detection_pipeline("llvm")(mod)  # whose convolutions are TVM's in any case
    assert len(_calls(report.module, "topi_ext.conv2d_nhwc")) == 1
    assert len(mod["main"].params) == 3  # the module itself is left as it was


def test_a_convolution_in_groups_keeps_its_layout_and_the_others_do_not(groups):
    model = nn.Sequential(traits.conv(), traits.conv(groups=2), traits.conv(groups=traits.CHANNELS))
    after = subpixel_pipeline(HOPPER, "float32")(imported(model.eval(), groups("convolutions")[1]))
    layouts = [
        (int(call.attrs.groups), str(call.attrs.data_layout))
        for call in _calls(relay.transform.InferType()(after), "nn.conv2d")
    ]
    assert layouts == [(1, "NHWC"), (2, "NCHW")]
    (depthwise,) = _calls(after, "topi_ext.conv2d_nhwc")  # which needs no tensor cores
    assert int(depthwise.attrs["groups"]) == traits.CHANNELS


@pytest.mark.usefixtures("cuda_source_only")
def test_a_block_of_resnext_is_computed_on_tensor_cores():
    x = torch.rand(1, 64, 9, 11) * 2 - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = resnet.Bottleneck(64, 16, groups=8, base_width=16).eval()
    mod = imported(model, x)
    after = detection_pipeline(HOPPER)(mod)
    assert not _calls(after, "nn.conv2d")
    assert [int(call.attrs["groups"]) for call in _calls(after, "topi_ext.conv2d_nhwc")] == [1, 8, 1]
    runtime.build_library(after, HOPPER)
    expected, found = (runtime.compile(each, "llvm")(x.numpy()) for each in (mod, after))
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def _calls(mod, name):
    found = []
    relay.analysis.post_order_visit(
        mod["main"], lambda node: found.append(node) if _is_call(node, name) else None
    )
    return found


def _is_call(node, name):
    return isinstance(node, relay.Call) and getattr(node.op, "name", None) == name
