"""The passes over graphs of Relax: what they leave, what it computes, and what they refuse."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import frontends.relax
import topi_ext
import tvm_passes
from tests.relax.modules import CUDA, QUICK, compiled, module_of, run, types_of
from topi_ext.conv2d_nhwc import onednn
from tvm_passes import runtime
from tvm_passes.analysis.targets import target_of
from tvm_passes.relax import FuseConv2dNHWC, convolution_pipeline
from tvm_passes.relax.graph import op_name

import tvm
from tvm import relax

CONVOLUTION = "topi_ext.conv2d_nhwc"
SEEDED = torch.Generator().manual_seed(2)
IMAGE = torch.rand(2, 3, 9, 12, generator=SEEDED)


def operators(module):
    """The names of those that `main` calls, in order."""
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [op_name(value) for value in values if op_name(value)]


def calls(module):
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [value for value in values if op_name(value) == CONVOLUTION]


def converted(module, target=QUICK, dtype=None):
    with tvm_passes.recording() as report:
        result = convolution_pipeline(target, dtype)(module)
    relax.analysis.well_formed(result)
    refused = {outcome.reason for each in report.passes for outcome in each.refusals}
    return result, refused


def test_a_target_by_its_name():
    """With options as in Relay, which TVM 0.27 itself takes in JSON only."""
    assert isinstance(convolution_pipeline("llvm"), tvm.transform.Pass)
    target = target_of("cuda -arch=sm_90 -libs=cudnn-frontend", "compile")
    assert (target.kind.name, str(target.attrs["arch"]), target.host.kind.name) == ("cuda", "sm_90", "llvm")
    assert list(target.attrs["libs"]) == ["cudnn-frontend"]
    with pytest.raises(ValueError, match="convolution_pipeline: TVM does not know the target 'lvm'"):
        convolution_pipeline("lvm")


def test_what_is_no_module():
    for passes in (convolution_pipeline("llvm"), FuseConv2dNHWC("llvm")):
        name = passes.info.name
        with pytest.raises(TypeError, match=f"^{name}: mod must be a tvm.IRModule, not str: give what"):
            passes("x")
        with pytest.raises(TypeError, match=f"^{name}: a pass can be neither copied nor pickled"):
            copy.copy(passes)


class Block(nn.Module):
    """A depthwise block of MobileNetV3: normalized, hard swish, squeezed and excited, with a residual."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 5, 1, 2, groups=8, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(3)])
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.last = nn.Conv2d(8, 8, 1, bias=False)
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -1, 1)
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = nn.functional.hardswish(self.norms[0](self.first(x)))
        y = self.norms[1](self.depthwise(x)).relu()
        weights = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu())
        y = y * nn.functional.hardsigmoid(weights)
        return nn.functional.relu6(self.norms[2](self.last(y)) + x)


class Frozen(nn.Module):
    """What torchvision's detectors have: a scale and a shift of constants, of which some are computed."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, dilation=1)
        self.dense = nn.Linear(6, 5)
        for name in ("scale", "shift", "variance"):
            self.register_buffer(name, torch.rand(6))

    def forward(self, x):
        scale = (self.scale * (self.variance + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        x = self.conv(x) * scale + self.shift.reshape(1, -1, 1, 1)
        x = nn.functional.leaky_relu(x, 0.1)
        return self.dense(x.mean((2, 3))), x


class Upsampled(nn.Module):
    """The head of a Mask R-CNN: a transposed convolution between others."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 2, 1)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)

    def forward(self, x):
        return self.last(self.up(self.first(x).relu()).relu()).sigmoid()


class Shared(nn.Module):
    """Results that are used elsewhere, in orders that the operator does not have."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.register_buffer("scale", torch.rand(4, 1, 1))

    def forward(self, x):
        x = self.first(x)
        y = self.second(x.relu()).tanh().sigmoid().relu()
        return x, x + y, y * self.scale


class Inverted(nn.Module):
    """Blocks of MobileNetV2: a convolution without an activation, whose result the next ones are added to."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.first(x)
        x = x + self.second(x)
        return x + self.third(x)


class NormalizedAlongAll(nn.Module):
    """A layer normalization of channels and pixels, whose gamma and beta are in the order NCHW."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.LayerNorm((4, 9, 12))
        nn.init.uniform_(self.norm.weight)
        nn.init.uniform_(self.norm.bias)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


NETWORKS = {
    # The activations of each convolution, in order.
    "block": (
        Block,
        [("hard_swish", "none"), ("relu", "none"), ("relu", "none"), ("clip", "clip"), ("none", "clip")],
    ),
    "frozen": (Frozen, [("leaky_relu", "none"), ("none", "none")]),
    "upsampled": (Upsampled, [("relu", "none"), ("relu", "none"), ("sigmoid", "none")]),
    "shared": (Shared, [("none", "none"), ("tanh", "sigmoid")]),
    "inverted": (Inverted, [("none", "none")] * 3),
    "normalized along all": (NormalizedAlongAll, [("none", "none")] * 2),
}
TARGETS = {"own": QUICK}
if onednn.is_available():
    TARGETS["onednn"] = tvm.target.Target({"kind": "llvm", "opt-level": 0, "libs": ["onednn"]})


def imported(name, dtype=torch.float32):
    torch.manual_seed(0)
    model = NETWORKS[name][0]().eval().to(dtype)
    return model, frontends.relax.from_pytorch(model, IMAGE.to(dtype))


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_take_in_what_follows(name):
    _, module = imported(name)
    result, _ = converted(module)
    found = [(str(call.attrs["activation"]), str(call.attrs["final_activation"])) for call in calls(result)]
    assert found == NETWORKS[name][1]
    left = set(operators(result))
    assert not left & {"relax.nn.conv2d", "relax.nn.conv2d_transpose", "relax.nn.batch_norm", "relax.matmul"}
    assert all(str(call.attrs["weight_id"]) for call in calls(result))
    again, _ = converted(result)
    tvm.ir.assert_structural_equal(again, result)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_computes_the_same(name, target):
    model, module = imported(name)
    with torch.no_grad():
        expected = model(IMAGE)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    result, _ = converted(module, TARGETS[target])
    for mine, theirs in zip(run(compiled(result, TARGETS[target]), [IMAGE.numpy()]), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["block", "frozen", "upsampled"])
def test_half_precision_is_fused_for_cuda(name, dtype):
    """Sums, and functions that torch spells in float32, are rounded by casts, which are taken in."""
    _, module = imported(name, dtype)
    result, _ = converted(module, CUDA)
    assert str(calls(result)[0].attrs["activation"]) == NETWORKS[name][1][0][0]
    assert not set(operators(result)) & {"relax.nn.conv2d", "relax.nn.batch_norm"}


@pytest.mark.parametrize("name", ["block", "upsampled"])
def test_half_precision_computes_the_same(name):
    model, module = imported(name, torch.float16)
    with torch.no_grad():
        expected = model.float()(IMAGE.half().float())
    (found,) = run(compiled(converted(module)[0], QUICK), [IMAGE.half().numpy()])
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(not onednn.multiplies("bfloat16"), reason="oneDNN has no kernel for this processor")
@pytest.mark.parametrize("name", ["block", "upsampled"])
def test_convolutions_of_bfloat16_are_of_onednn(name):
    model, module = imported(name, torch.bfloat16)
    result, _ = converted(module, TARGETS["onednn"], "float32")
    assert len(calls(result)) > 1 and "relax.nn.conv2d" not in operators(result)
    found = runtime.compile(result, TARGETS["onednn"])(IMAGE.bfloat16())
    with torch.no_grad():
        expected = model.float()(IMAGE.bfloat16().float())
    np.testing.assert_allclose(found.float(), expected, rtol=2e-2, atol=2e-2)


def test_sums_that_are_used_as_they_are_stay():
    images, weight = (
        relax.TensorType((2, 9, 12, 3), "float16"),
        relax.const(np.ones((4, 3, 3, 3), "float16")),
    )

    def build(x):
        sums = relax.op.nn.conv2d(x, weight, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32")
        return relax.Tuple([sums, relax.op.astype(sums, "float16")])

    _, refused = converted(of_images(build, images))
    assert "the sums are used without rounding, too" in refused


@pytest.mark.parametrize("name", ["block", "upsampled"])
def test_transposes_stay_at_the_ends_only(name):
    _, module = imported(name)
    result, _ = converted(module)
    assert operators(result).count("relax.permute_dims") == 2


def convolution(x, **options):
    weight = relax.const(np.ones((4, 3, 3, 3), "float32"))
    return relax.op.nn.conv2d(x, weight, data_layout="NHWC", kernel_layout="OHWI", **options)


def of_images(build, *types):
    types = types or [relax.TensorType((2, 9, 12, 3), "float32")]
    return module_of({"main": (lambda variables: build(*variables), types)})


def test_residuals_are_added_where_they_come_first():
    result, _ = converted(imported("inverted")[1])
    assert "relax.add" not in operators(result)
    assert [int(call.attrs["has_residual"]) for call in calls(result)] == [0, 1, 1]


def fused(x, channels=4, **options):
    return topi_ext.conv2d_nhwc(x, relax.const(np.ones((4, 1, 1, channels), "float32")), **options)


def quantized(x):
    ones = [relax.const(np.ones(shape, dtype)) for shape, dtype in (((4, 1, 1, 3), "int8"), (4, "float32"))]
    x = relax.op.astype(x, "int8")
    return topi_ext.conv2d_nhwc(x, ones[0], scale=ones[1], out_scale=2.0, out_dtype="float32")


def plus_one(x, shape=()):
    return relax.op.add(x, relax.const(np.ones(shape, "float32")))


def normalized(x, axis=3, count=4, training=False):
    parameters = [relax.const(np.full(count, value, "float32")) for value in (2, 1, 3, 4)]
    return relax.TupleGetItem(
        relax.op.nn.batch_norm(convolution(x), *parameters, axis=axis, training=training), 0
    )


REFUSED = {
    "moments of the data": (lambda x: normalized(x, training=True), "normalizes by the moments of the data"),
    "of rows": (lambda x: normalized(x, axis=1, count=7), "along another axis than the channels"),
    "quantized": (lambda x: plus_one(quantized(x)), "has scaled and rounded its result to int8"),
    "shuffled": (
        lambda x: relax.op.add(fused(x, 3, block_size=2), fused(x, 3, block_size=2)),
        "the tensor is added after a shuffle",
    ),
    "infinite": (
        lambda x: relax.op.multiply(
            relax.op.multiply(convolution(x), relax.const(3e38, "float32")), relax.const(3e38, "float32")
        ),
        "weights or bias would overflow",
    ),
    "along a row": (
        lambda x: relax.op.add(convolution(x, padding=1), relax.const(np.ones((12, 1), "float32"))),
        "the constant is not one for each channel",
    ),
    "the wrong way round": (
        lambda x: relax.op.clip(convolution(x), 6, 0),
        "the bounds of the clip are the wrong way round",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name):
    build, reason = REFUSED[name]
    _, refused = converted(of_images(build))
    assert any(reason in each for each in refused), refused


def test_of_a_batch_that_is_known_at_run_time_the_kind_is_compared():
    """One image may be broadcast to a batch, or not be."""
    n = tvm.tirx.Var("n", "int64")
    batch, one = (relax.TensorType((count, 9, 12, 4), "float32") for count in (n, 1))
    result, refused = converted(of_images(lambda x, y: relax.op.add(fused(plus_one(x, 4)), y), batch, one))
    assert operators(result) == ["relax.add", CONVOLUTION, "relax.add"]
    assert refused == {"one of the tensors is broadcast to the other"}
    result, _ = converted(of_images(lambda x, y: plus_one(relax.op.add(fused(x), y), 4), batch, batch))
    assert operators(result) == [CONVOLUTION]


LENGTHS = {name: tvm.tirx.Var(name, "int64") for name in "nhwc"}


def residual_block(x):
    branch = relax.op.nn.relu(plus_one(convolution(x, padding=1), 4))
    return relax.op.nn.relu(relax.op.add(convolution(plus_one(x), padding=1), branch))


@pytest.mark.parametrize(
    "shape, target",
    [(("n", 9, 12, 3), name) for name in TARGETS] + [(("n", "h", "w", 3), "onednn")] * onednn.is_available(),
    ids=str,
)
def test_batches_and_sizes_may_be_known_only_at_run_time(shape, target):
    images = relax.TensorType([LENGTHS.get(extent, extent) for extent in shape], "float32")
    module = of_images(residual_block, images)
    result, refused = converted(module, TARGETS[target])
    assert sorted(operators(result)) == ["relax.add", CONVOLUTION, CONVOLUTION]
    assert not refused
    mine, theirs = compiled(result, TARGETS[target]), compiled(module)
    for extents in ({"n": 1, "h": 9, "w": 12}, {"n": 3, "h": 4, "w": 7}):
        array = np.random.default_rng(0).random([extents.get(extent, extent) for extent in shape], "float32")
        np.testing.assert_allclose(run(mine, [array])[0], run(theirs, [array])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shape, target, reason",
    [
        (("n", 9, 12, 3), CUDA, "the batch is dynamic, for which the target has no kernel"),
        ((2, "h", 12, 3), QUICK, "the size of the images is dynamic, for which the target has no kernel"),
        ((2, 9, 12, "c"), QUICK, "the number of channels is dynamic"),
    ],
    ids=str,
)
def test_shapes_that_are_not_known_stay(shape, target, reason):
    images = relax.TensorType([LENGTHS.get(extent, extent) for extent in shape], "float32")
    module = of_images(lambda x: relax.op.permute_dims(convolution(x)), images)
    result, refused = converted(module, target, "float16" if target is CUDA else None)
    assert "relax.nn.conv2d" in operators(result)
    assert refused == {reason}


def test_fully_connected_layers_of_sequences():
    sequences = np.random.default_rng(0).random((2, 3, 5, 8), "float32")
    weight = np.random.default_rng(1).random((8, 6), "float32")
    module = of_images(lambda x: relax.op.matmul(x, relax.const(weight)), *types_of([sequences]))
    result, _ = converted(module)
    assert CONVOLUTION in operators(result) and "relax.matmul" not in operators(result)
    (found,) = run(compiled(result), [sequences])
    np.testing.assert_allclose(found, sequences @ weight, rtol=1e-5, atol=1e-5)


def test_variables_of_the_same_value_are_told_apart():
    """Each has users."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 9, 12, 4), "float32"))
    with builder.function("main", [x]):
        value = fused(x)
        one, other = builder.emit(value), builder.emit(value)
        builder.emit_func_output(relax.op.add(builder.emit(relax.op.nn.relu(one)), other))
    with tvm_passes.recording() as report:
        result = FuseConv2dNHWC(QUICK)(builder.get())
    assert operators(result) == [CONVOLUTION, CONVOLUTION, "relax.nn.relu", "relax.add"]
    assert {each.reason for each in report.passes[0].refusals} == {
        "the result of the convolution has other users"
    }


def test_float32_stays_on_cuda():
    result, refused = converted(of_images(convolution), CUDA, "float32")
    assert operators(result) == ["relax.nn.conv2d"]
    assert refused == {"the target has no kernel for float32"}


def test_depthwise_float32_has_a_kernel_on_cuda():
    weight = relax.const(np.ones((3, 3, 3, 1), "float32"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    result, _ = converted(
        of_images(lambda x: relax.op.nn.conv2d(x, weight, groups=3, **layouts)), CUDA, "float32"
    )
    assert operators(result) == [CONVOLUTION]


@pytest.mark.parametrize("target", [{"kind": "cuda", "arch": "sm_70"}, {"kind": "c"}])
def test_targets_without_kernels_keep_their_own(target):
    images = relax.TensorType((2, 9, 12, 3), "float16")
    weight = relax.const(np.ones((4, 3, 3, 3), "float16"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    module = of_images(lambda x: relax.op.nn.conv2d(x, weight, **layouts), images)
    result, refused = converted(module, tvm.target.Target(target, host="llvm"))
    assert operators(result) == ["relax.nn.conv2d"]
    assert refused == {"the target has no kernel for float16"}


def test_what_needs_relay_says_so():
    with pytest.raises(ImportError, match=r"tvm_passes\.InInt8 needs a TVM with Relay"):
        tvm_passes.InInt8  # noqa: B018
    assert topi_ext.conv2d_nhwc
