"""RestoreLayerNorm: the spellings of a normalization, what looks like one, and what becomes of it."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

import frontends
import topi_ext
from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    refusals,
    run,
)
from tvm_passes import (
    Canonicalize,
    ConvertToNHWC,
    InMixedPrecision,
    RestoreLayerNorm,
    default_pipeline,
    detection_pipeline,
    subpixel_pipeline,
)
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph, calls_of

import tvm
from tvm import relay

NAME = "topi_ext.layer_norm"
SHAPE = (2, 6, 5, 7)


def const(number):
    return relay.const(number, "float32")


def norm_of(x, axis=1, mean=relay.mean, epsilon=1e-3, divided=None, square=lambda d: d * d, also=()):
    """(x - mean) / sqrt(variance + epsilon), with some part of it changed."""
    mean_of_x = mean(x, axis=axis, keepdims=True)
    difference = x - mean_of_x
    variance = mean(square(difference), axis=axis, keepdims=True)
    shifted = variance + (epsilon if isinstance(epsilon, relay.Expr) else const(epsilon))
    return (divided or (lambda d, s: d / relay.sqrt(s)))(difference, shifted)


def mean_of_sum(x, axis, keepdims):
    total = relay.sum(x, axis=axis) / const(float(SHAPE[axis]))
    return relay.expand_dims(total, axis)


def by_variance(x, unbiased=False, mean=None):
    mean = relay.mean(x, axis=1, keepdims=True) if mean is None else mean
    variance = relay.variance(x, axis=1, keepdims=True, unbiased=unbiased, with_mean=mean)
    return (x - mean) * relay.rsqrt(variance + const(1e-3))


def of_channels(*shape, seed=1):
    return relay.const(numbers(*shape, seed=seed))


SPELLINGS = {
    "divided by the root": norm_of,
    "along the last axis": lambda x: norm_of(x, axis=-1),
    "along the first axis": lambda x: norm_of(x, axis=0),
    "times rsqrt": lambda x: norm_of(x, divided=lambda d, s: d * relay.rsqrt(s)),
    "rsqrt first": lambda x: norm_of(x, divided=lambda d, s: relay.rsqrt(s) * d),
    "times a reciprocal": lambda x: norm_of(x, divided=lambda d, s: d * (const(1.0) / relay.sqrt(s))),
    "times a power": lambda x: norm_of(x, divided=lambda d, s: d * relay.power(s, const(-0.5))),
    "divided by a power": lambda x: norm_of(x, divided=lambda d, s: d / relay.power(s, const(0.5))),
    "power of the difference": lambda x: norm_of(x, square=lambda d: relay.power(d, const(2.0))),
    "the difference computed twice": lambda x: norm_of(
        x, divided=lambda d, s: relay.subtract(*d.args) / relay.sqrt(s)
    ),
    "epsilon first": lambda x: norm_of(
        x, divided=lambda d, s: d / relay.sqrt(relay.add(*list(s.args)[::-1]))
    ),
    "epsilon with axes": lambda x: norm_of(x, epsilon=relay.const(np.full((1, 1, 1, 1), 1e-3, "float32"))),
    "a divided sum": lambda x: norm_of(x, mean=mean_of_sum),
    "TVM's variance": by_variance,
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(case):
    x = relay.var("x", shape=SHAPE)
    mod = module(x, SPELLINGS[case](x))
    after = assert_same_numbers(RestoreLayerNorm(), mod, numbers(*SHAPE) + 3, rtol=1e-4, atol=1e-5)
    assert ops(after) == [NAME]
    (call,) = calls_of(after, NAME)
    assert abs(float(call.attrs["epsilon"]) - 1e-3) < 1e-9
    assert_no_second_change(RestoreLayerNorm(), after)


def test_structure():
    x, gamma, beta = relay.var("x", shape=SHAPE), numbers(6, seed=1), numbers(6, seed=2)
    spread = [relay.const(each.reshape(6, 1, 1)) for each in (gamma, beta)]
    mod = module(x, spread[0] * norm_of(x) + spread[1])
    expected = topi_ext.layer_norm(
        x, relay.const(gamma), relay.const(beta), axis=1, epsilon=float(np.float32(1e-3))
    )
    expected = relay.transform.InferType()(module(x, expected))
    tvm.ir.assert_structural_equal(RestoreLayerNorm()(mod), expected)


AFFINE = {
    "gamma": (lambda y: y * of_channels(6, 1, 1), [NAME]),
    "beta": (lambda y: y + of_channels(1, 6, 1, 1), [NAME]),
    "both, the other way round": (lambda y: of_channels(6, 1, 1, seed=2) + of_channels(6, 1, 1) * y, [NAME]),
    "numbers for all": (lambda y: y * const(3.0) + relay.const(np.float32([[[2]]])), [NAME]),
    "a bias": (lambda y: relay.nn.bias_add(y * of_channels(6, 1, 1), of_channels(6), axis=1), [NAME]),
    "reshaped": (lambda y: y * relay.reshape(of_channels(6), (1, -1, 1, 1)), [NAME]),
    "a factor of the sum": (lambda y: (y + of_channels(6, 1, 1)) * of_channels(6, 1, 1), [NAME, "multiply"]),
    "two factors": (lambda y: y * const(2.0) * of_channels(6, 1, 1), [NAME, "multiply"]),
    "computed factors": (lambda y: y * relay.sigmoid(y), [NAME, "sigmoid", "multiply"]),
}


@pytest.mark.parametrize("case", AFFINE)
def test_gamma_and_beta(case):
    behind, expected = AFFINE[case]
    x = relay.var("x", shape=SHAPE)
    mod = module(x, behind(norm_of(x)))
    after = assert_same_numbers(RestoreLayerNorm(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert [name for name in ops(after) if name != "reshape"] == expected
    assert_no_second_change(RestoreLayerNorm(), after)


REFUSED = {
    "not those of the data": lambda x: norm_of(
        x, divided=lambda d, s: (relay.nn.relu(x) - d.args[1]) / relay.sqrt(s)
    ),
    "the mean and the variance are not those": lambda x: norm_of(
        x, square=lambda d: relay.power(x - relay.mean(relay.abs(x), axis=1, keepdims=True), const(2.0))
    ),
    "not along the same axis": lambda x: norm_of(
        x, square=lambda d: relay.power(x - relay.mean(x, axis=2, keepdims=True), const(2.0))
    ),
    "normalized over 2 axes together": lambda x: norm_of(x, axis=[2, 3]),
    "is unbiased": lambda x: by_variance(x, unbiased=True),
    "divided by one less": lambda x: norm_of(
        x,
        divided=lambda d, s: (
            d / relay.sqrt(relay.sum(d * d, axis=1, keepdims=True) / const(5.0) + const(1e-3))
        ),
    ),
    "epsilon is not a number above 0": lambda x: norm_of(x, epsilon=0.0),
    "epsilon is not a number": lambda x: norm_of(x, epsilon=-1e-3),
    "epsilon is": lambda x: norm_of(x, epsilon=of_channels(6, 1, 1)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    x = relay.var("x", shape=SHAPE)
    mod = module(x, REFUSED[reason](x))
    after, report = apply(RestoreLayerNorm(), mod)
    assert ops(after) == ops(mod)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_an_axis_that_is_not_kept_is_refused():
    x = relay.var("x", shape=(4, 4))
    mean = relay.mean(x, axis=1)
    variance = relay.mean((x - mean) * (x - mean), axis=1)
    _, report = apply(RestoreLayerNorm(), module(x, (x - mean) / relay.sqrt(variance + const(1e-3))))
    assert "does not keep the axis" in refusals(report)[0]


@pytest.mark.parametrize("stock", [False, True])
def test_unknown_lengths_and_wide_types_are_refused(stock):
    def refusals_of(length, dtype):
        x = relay.var("x", shape=(2, length, 5, 7), dtype=dtype)
        affine = [relay.var(name, shape=(length,), dtype=dtype) for name in ("gamma", "beta")]
        epsilon = relay.const(1e-3, dtype)
        y = relay.nn.layer_norm(x, *affine, axis=1) if stock else norm_of(x, epsilon=epsilon)
        return refusals(apply(RestoreLayerNorm(), module(*relay.analysis.free_vars(y), y))[1])

    assert refusals_of(relay.Any(), "float32") == ["the length of the axis is known only at run time"]
    assert refusals_of(6, "float64") == ["float64 would be computed in float32"]


def test_an_epsilon_of_0_in_the_stock_norm_is_refused():
    x = relay.var("x", shape=SHAPE)
    mod = module(x, relay.nn.layer_norm(x, of_channels(6), of_channels(6), 1, 0.0))
    assert refusals(apply(RestoreLayerNorm(), mod)[1]) == ["epsilon is not a number above 0"]


def test_unknown_lengths_of_other_axes():
    x = relay.var("x", shape=(relay.Any(), 6, relay.Any(), 7))
    after = assert_same_numbers(
        RestoreLayerNorm(), module(x, norm_of(x)), numbers(*SHAPE), rtol=1e-4, atol=1e-5
    )
    assert ops(after) == [NAME]


def test_numbers_of_pixels_are_refused():
    x = relay.var("x", shape=SHAPE)
    mod = module(x, norm_of(x) * of_channels(5, 7))
    after, report = apply(RestoreLayerNorm(), mod)
    assert ops(after) == [NAME, "multiply"]
    assert "does not have a number for each channel" in refusals(report)[0]


def test_data_that_are_used_before_their_factor_are_refused():
    x = relay.var("x", shape=SHAPE)
    y = norm_of(x)
    after, report = apply(RestoreLayerNorm(), module(x, relay.Tuple([y, y * of_channels(6, 1, 1)])))
    assert ops(after) == [NAME, "multiply"]
    assert "used elsewhere" in refusals(report)[0]


OTHERS = {
    "the root mean square": lambda x: x * relay.rsqrt(relay.mean(x * x, axis=1, keepdims=True) + const(1e-3)),
    "the mean of absolute differences": lambda x: norm_of(x, square=relay.abs),
    "another power": lambda x: norm_of(x, divided=lambda d, s: d * relay.power(s, const(-1.0))),
    "twice the reciprocal": lambda x: norm_of(x, divided=lambda d, s: d * (const(2.0) / relay.sqrt(s))),
    "a batch norm of constants": lambda x: (
        (x - of_channels(6, 1, 1)) / relay.sqrt(relay.abs(of_channels(6, 1, 1)) + const(1e-3))
    ),
    "a sum divided by something else": lambda x: (
        (x - relay.sum(x, axis=1, keepdims=True) / const(3.0))
        / relay.sqrt(
            relay.mean(
                relay.power(x - relay.mean(x, axis=1, keepdims=True), const(2.0)), axis=1, keepdims=True
            )
            + const(1e-3)
        )
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_something_else_is_left(case):
    x = relay.var("x", shape=SHAPE)
    mod = module(x, OTHERS[case](x))
    after, report = apply(RestoreLayerNorm(), mod)
    assert ops(after) == ops(mod) and not any(each.matches for each in report.passes)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_stock_norm(center, scale):
    x = relay.var("x", shape=SHAPE)
    gamma, beta = of_channels(6), of_channels(6, seed=2)
    mod = module(x, relay.nn.layer_norm(x, gamma, beta, 1, 1e-3, center=center, scale=scale))
    after = assert_same_numbers(RestoreLayerNorm(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    (call,) = calls_of(after, NAME)
    assert ops(after) == [NAME]
    assert (call.attrs["has_beta"], call.attrs["has_gamma"]) == (center, scale)


TRANSPOSES = {
    "there and back": ((0, 2, 3, 1), (0, 3, 1, 2), [NAME], 1),
    "backwards": (None, None, [NAME], 0),
    "elsewhere": ((0, 2, 3, 1), (0, 2, 1, 3), ["transpose", NAME, "transpose"], 3),
}


@pytest.mark.parametrize("case", TRANSPOSES)
@pytest.mark.parametrize("also", [False, True])
def test_between_transposes(case, also):
    before, behind, expected, axis = TRANSPOSES[case]
    x = relay.var("x", shape=SHAPE)
    y = relay.nn.layer_norm(relay.transpose(x, before), *[of_channels(6 if before else 2)] * 2)
    result = relay.transpose(y, behind)
    mod = module(x, relay.Tuple([result, y]) if also else result)
    after = assert_same_numbers(RestoreLayerNorm(), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == (["transpose", NAME, "transpose"] if also else expected)
    if not also:
        assert calls_of(after, NAME)[0].attrs["axis"] % 4 == axis
    elif case != "elsewhere":
        assert "used elsewhere" in refusals(apply(RestoreLayerNorm(), mod)[1])[0]


@pytest.mark.parametrize("also", [False, True])
def test_half_precision_between_casts(also):
    x = relay.var("x", shape=SHAPE, dtype="float16")
    y = norm_of(relay.cast(x, "float32")) * of_channels(6, 1, 1)
    result = relay.cast(y, "float16")
    mod = module(x, relay.Tuple([result, y]) if also else result)
    after = assert_same_numbers(
        RestoreLayerNorm(), mod, numbers(*SHAPE, dtype="float16"), rtol=1e-3, atol=1e-3
    )
    assert ops(after) == (["cast", NAME, "cast"] if also else [NAME])
    if also:
        assert "used elsewhere" in refusals(apply(RestoreLayerNorm(), mod)[1])[0]
    assert_no_second_change(RestoreLayerNorm(), after)


def in_half_with_float32_inside(x):
    """As a network in half precision is imported: means and roots are computed in float32, and rounded."""

    def rounded(y):
        return relay.cast(y, "float16")

    def mean(y):
        return rounded(relay.mean(relay.cast(y, "float32"), axis=1, keepdims=True))

    difference = x - mean(x)
    shifted = mean(difference * difference) + relay.const(1e-3, "float16")
    return difference / rounded(relay.sqrt(relay.cast(shifted, "float32")))


def test_half_precision_with_casts_inside():
    x = relay.var("x", shape=SHAPE, dtype="float16")
    mod = module(x, in_half_with_float32_inside(x))
    data = numbers(*SHAPE, dtype="float16")
    after = assert_same_numbers(RestoreLayerNorm(), mod, data, rtol=4e-3, atol=4e-3)
    assert ops(after) == [NAME]
    assert_no_second_change(RestoreLayerNorm(), after)


def test_casts_of_whole_numbers_are_not_left_out():
    """A mean that is rounded to a whole number is another one."""
    x = relay.var("x", shape=SHAPE)

    def mean(y, axis, keepdims):
        whole = relay.cast(relay.mean(y, axis=axis, keepdims=keepdims), "int32")
        return relay.cast(whole, "float32")

    after, _ = apply(RestoreLayerNorm(), module(x, norm_of(x, mean=mean)))
    assert NAME not in ops(after)


def test_half_precision():
    """The variance of the differences is beyond float16, which the operator computes in float32."""
    x = relay.var("x", shape=SHAPE, dtype="float16")
    mod = module(x, norm_of(x, epsilon=relay.const(1e-3, "float16")))
    assert ops(RestoreLayerNorm()(mod)) == [NAME]
    data = numbers(*SHAPE, dtype="float16")
    np.testing.assert_allclose(*(run(each, data)[0] for each in (RestoreLayerNorm()(mod), mod)), 1e-2, 1e-2)


# --- behind it


def test_half_precision_keeps_gamma_and_beta():
    x = relay.var("x", shape=(1, 8, 6, 6))
    y = topi_ext.layer_norm(convolution(x, 8, 8), of_channels(8), of_channels(8), axis=1)
    after = InMixedPrecision()(module(x, convolution(y, 8, 8)))
    (call,) = calls_of(after, NAME)
    assert [arg.checked_type.dtype for arg in call.args] == ["float16", "float32", "float32"]
    assert call.checked_type.dtype == "float16"


@pytest.mark.parametrize("axis", [1, -2])
def test_its_axis_moves_to_nhwc(axis):
    x = relay.var("x", shape=(1, 8, 6, 5))
    y = topi_ext.layer_norm(convolution(x, 8, 8), axis=axis)
    mod = module(x, convolution(y, 8, 8))
    after = assert_same_numbers(ConvertToNHWC(), mod, numbers(1, 8, 6, 5), rtol=1e-4, atol=1e-5)
    assert ops(after) == ["layout_transform", "nn.conv2d", NAME, "nn.conv2d", "layout_transform"]
    (call,) = calls_of(after, NAME)
    assert call.attrs["axis"] == (3 if axis == 1 else 1)


def test_data_without_a_layout_keep_their_axis():
    x = relay.var("x", shape=(1, 8, 30))
    y = topi_ext.layer_norm(x, axis=1)
    mod = module(x, convolution(relay.reshape(y, (1, 8, 6, 5)), 8, 8))
    after = assert_same_numbers(ConvertToNHWC(), mod, numbers(1, 8, 30), rtol=1e-4, atol=1e-5)
    (call,) = calls_of(after, NAME)
    assert call.attrs["axis"] == 1


# --- from the frontends


class NormOfPixels(torch.nn.Module):
    """As image restoration networks and ConvNeXt have it."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.rand(channels)) for _ in range(2))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (variance + 1e-6).sqrt()
        return self.weight.view(1, -1, 1, 1) * y + self.bias.view(1, -1, 1, 1)


class NormInNHWC(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NormByVariance(torch.nn.Module):
    """As in transformers for image restoration."""

    def forward(self, x):
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5)


class Block(torch.nn.Module):
    def __init__(self, norm, channels=16):
        super().__init__()
        self.first = torch.nn.Conv2d(3, channels, 3, padding=1)
        self.norms = torch.nn.ModuleList([norm(), norm()])
        self.between = torch.nn.Conv2d(channels, channels, 1)
        self.last = torch.nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        x = x + self.between(self.norms[0](x))
        return self.last(functional.relu(self.norms[1](x)))


NORMS = {
    "of pixels": lambda: NormOfPixels(16),
    "in NHWC": lambda: NormInNHWC(16),
    "in NHWC, plain": lambda: NormInNHWC(16, elementwise_affine=False),
    "by variance": NormByVariance,
}


def imported(norm):
    torch.manual_seed(0)
    network, image = Block(NORMS[norm]).eval(), torch.rand(1, 3, 8, 12)
    mod, params = frontends.from_pytorch(network, image)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod, image.numpy(), network(image).detach().numpy()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pipeline", [default_pipeline, lambda: subpixel_pipeline("llvm")])
def test_from_pytorch(norm, pipeline):
    mod, image, expected = imported(norm)
    after = pipeline()(mod)
    assert ops(after).count(NAME) == 2 and not {"mean", "sum", "sqrt", "rsqrt"} & set(ops(after))
    np.testing.assert_allclose(run(after, image)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("pipeline", [subpixel_pipeline, detection_pipeline])
def test_on_tensor_cores(norm, pipeline):
    mod, *_ = imported(norm)
    after = pipeline("cuda -arch=sm_90")(mod)
    graph = Graph(after["main"])
    norms = calls_of(after, NAME)
    assert len(norms) == 2
    for call in norms:
        assert call.checked_type.dtype == "float16"
        assert [int(length) for length in call.checked_type.shape] == [1, 8, 12, 16] and call.attrs[
            "axis"
        ] == 3
        for beside in (call.args[0], *graph.users(call)):
            assert op_name(beside) not in ("cast", "layout_transform", "transpose", "add", "multiply")
    with tvm.transform.PassContext(opt_level=3):
        relay.vm.compile(after, tvm.target.Target("cuda -arch=sm_90", host="llvm"))


@pytest.mark.parametrize("opset", [16, 17])
def test_from_onnx(opset, tmp_path):
    network, image = torch.nn.LayerNorm(8).eval(), torch.rand(2, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (image,), str(tmp_path / "norm.onnx"), opset_version=opset)
    mod, _ = frontends.from_onnx(tmp_path / "norm.onnx")
    after = tvm.transform.Sequential([Canonicalize(), RestoreLayerNorm()])(mod)
    assert ops(after) == [NAME]
    np.testing.assert_allclose(run(after, image.numpy())[0], network(image).detach().numpy(), 1e-5, 1e-5)
