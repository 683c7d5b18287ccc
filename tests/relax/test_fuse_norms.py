"""Normalizations of groups, and along one axis, in Relax: by `topi_ext`, in half precision too."""

import numpy as np
import pytest
import torch
from torch import nn

import frontends.relax
import tvm_passes
from tests.relax.modules import CUDA, QUICK, compiled, module_of, run
from tests.relax.onnx_models import exported
from tests.relax.test_passes import converted, operators
from topi_ext.group_norm.op import NAME as GROUP_NORM
from topi_ext.layer_norm.op import NAME as LAYER_NORM
from tvm_passes.relax import FuseNorms, InMixedPrecision, convolution_pipeline
from tvm_passes.relax.graph import Graph, dtype_of, op_name

import tvm
from tvm import relax

SEEDED = torch.Generator().manual_seed(6)
IMAGE = torch.rand(2, 3, 9, 10, generator=SEEDED)
DATA = relax.TensorType((2, 6, 5, 4), "float32")


class Heads(nn.Module):
    """A head of FCOS, whose groups are normalized, and a block of ConvNeXt, whose pixels are."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
        self.groups, self.pixels = nn.GroupNorm(2, 8, eps=0.1), nn.LayerNorm(8)
        for norm in (self.groups, self.pixels):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -1, 1)

    def forward(self, x):
        x = self.second(self.groups(self.first(x)).relu())
        return self.last(self.pixels(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def imported():
    torch.manual_seed(1)
    model = Heads().eval()
    with torch.no_grad():
        expected = model(IMAGE).numpy()
    return frontends.relax.from_pytorch(model, IMAGE), expected


def norms(module):
    values = [value for _, value in Graph(module["main"]).bindings]
    return [value for value in values if op_name(value) in (GROUP_NORM, LAYER_NORM)]


def fused(build, *types):
    with tvm_passes.recording() as report:
        result = FuseNorms()(module_of({"main": (lambda variables: build(*variables), types or [DATA])}))
    return result, {outcome.reason for outcome in report.passes[0].refusals}


@pytest.mark.parametrize(("half", "tolerance"), [(None, 1e-5), ("float16", 1e-2)])
def test_the_network_computes_the_same(half, tolerance):
    module, expected = imported()
    result, refused = converted(module)
    result = InMixedPrecision(half)(result) if half else result
    assert [op_name(each) for each in norms(result)] == [GROUP_NORM, LAYER_NORM] and not refused
    (found,) = run(compiled(result, QUICK), [IMAGE.numpy()])
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    tvm.ir.assert_structural_equal(converted(converted(module)[0])[0], converted(module)[0])


def test_they_are_in_half_precision_without_casts_in_between():
    module, _ = imported()
    result = convolution_pipeline(CUDA)(module)
    of_groups, of_pixels = norms(result)
    assert str(of_groups.attrs["activation"]) == "relu" and "relax.nn.relu" not in operators(result)
    for call in (of_groups, of_pixels):
        assert [dtype_of(each) for each in (call, *call.args)] == ["float16"] * 2 + ["float32"] * 2
    assert operators(result).count("relax.astype") == 2  # of the input and of the result


def vectors(count):
    return [relax.const(np.full(count, value, "float32")) for value in (2, 1)]


def of_groups(x, channels=6, axis=1, axes=(2, 3), **options):
    return relax.op.nn.group_norm(x, *vectors(channels), 2, axis, list(axes), **options)


def clipped_wrong(x):
    return relax.op.clip(of_groups(x), 6, 0)


REFUSED = {
    "a group is not all pixels of an image": lambda x: of_groups(x, axes=(2,)),
    "epsilon is not above 0": lambda x: of_groups(x, epsilon=0.0),
    "it normalizes along several axes": lambda x: relax.op.nn.layer_norm(
        x, *(relax.const(np.ones((5, 4), "float32")) for _ in range(2)), [2, 3]
    ),
    "the bounds of the clip are the wrong way round": clipped_wrong,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_would_be_wrong_is_refused(reason):
    _, refused = fused(REFUSED[reason])
    assert refused == {reason}


def test_an_activation_beside_another_user_stays():
    builder, x = relax.BlockBuilder(), relax.Var("x", DATA)
    with builder.function("main", [x]):
        y = builder.emit(of_groups(x))
        builder.emit_func_output(relax.op.add(y, builder.emit(relax.op.nn.relu(y))))
    with tvm_passes.recording() as report:
        result = FuseNorms()(builder.get())
    assert operators(result) == [GROUP_NORM, "relax.nn.relu", "relax.add"]
    reasons = {outcome.reason for outcome in report.passes[0].refusals}
    assert reasons == {"the result of the normalization has other users"}


def test_scales_that_are_not_used_are_left_out():
    result, _ = fused(lambda x: of_groups(x, center=False, scale=False))
    (call,) = norms(result)
    assert not call.attrs["has_gamma"] and not call.attrs["has_beta"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the exporter
def test_groups_as_pytorch_exports_them():
    """They are joined to channels, normalized, taken apart, multiplied and added to."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8, eps=0.1), nn.ReLU(), nn.Conv2d(8, 2, 1)
    ).eval()
    for parameter in model[1].parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    proto, _ = exported(model, IMAGE)
    module = convolution_pipeline(QUICK)(frontends.relax.from_onnx(proto))
    (norm,) = norms(module)
    assert int(norm.attrs["groups"]) == 2 and str(norm.attrs["activation"]) == "relu"
    assert not {"relax.multiply", "relax.add", "relax.reshape"} & set(operators(module))
    (found,) = run(compiled(module, QUICK), [IMAGE.numpy()])
    np.testing.assert_allclose(found, model(IMAGE).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_no_number_of_each_channel_is_not_folded():
    def build(data):
        gamma, beta = (relax.const(np.full(6, number, "float32")) for number in (2, 1))
        norm = relax.op.nn.group_norm(data, gamma, beta, 2, 1, [2, 3], epsilon=0.1)
        return relax.op.multiply(norm, relax.const(np.ones((6, 5, 1), "float32")))

    result, _ = fused(build)
    assert len(norms(result)) == 1 and "relax.multiply" in operators(result)
