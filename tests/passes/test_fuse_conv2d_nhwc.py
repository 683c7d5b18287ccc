"""FuseConv2dNHWC: structure, numbers, refusals, and nothing more the second time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.helpers import (
    apply,
    assert_no_second_change,
    assert_same_numbers,
    convolution,
    module,
    numbers,
    ops,
    quick,
    refusals,
    run,
    runner,
)
from topi_ext.conv2d_nhwc import reference
from tvm_passes import FuseConv2dNHWC, InMixedPrecision
from tvm_passes.engine.expressions import constant, op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

SHAPE = (1, 6, 7, 8)
FUSED = "topi_ext.conv2d_nhwc"


def image(shape=SHAPE, name="x", dtype="float32"):
    return relay.var(name, shape=shape, dtype=dtype)


def conv(x, filters=8, channels=8, **options):
    options = {"data_layout": "NHWC", "kernel_layout": "HWIO", **options}
    return convolution(x, filters, channels, **options)


def vector(count=8, seed=3):
    return relay.const(numbers(count, seed=seed))


def bias(y):
    return relay.add(y, vector())


def leaky(y):
    return relay.nn.leaky_relu(y, 0.1)


def clip(y):
    return relay.clip(y, -0.5, 0.5)


def prelu(y):
    return relay.nn.prelu(y, vector(seed=4), axis=3)


def shuffle(y, mode="DCR"):
    return relay.nn.depth_to_space(y, 2, "NHWC", mode)


EPILOGUES = {
    "nothing": lambda x, y: y,
    "bias": lambda x, y: bias(y),
    "bias_add": lambda x, y: relay.nn.bias_add(y, vector(), axis=3),
    "a scalar": lambda x, y: relay.add(relay.const(0.5), y),
    "two biases": lambda x, y: relay.add(bias(y), vector(seed=5)),
    "bias, relu": lambda x, y: relay.nn.relu(bias(y)),
    "prelu": lambda x, y: prelu(bias(y)),
    "leaky": lambda x, y: leaky(y),
    "two activations": lambda x, y: clip(relay.nn.relu(y)),
    "residual": lambda x, y: relay.add(x, bias(y)),
    "residual, bias": lambda x, y: relay.add(relay.add(y, x), vector()),
    "activation, residual, activation": lambda x, y: clip(relay.add(prelu(bias(y)), x)),
    "residual, relu": lambda x, y: relay.nn.relu(relay.add(y, x)),
    "shuffle": lambda x, y: shuffle(leaky(bias(y))),
    "two activations, shuffle": lambda x, y: shuffle(clip(leaky(bias(y)))),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_one_operator(name):
    x = image()
    mod = module(x, EPILOGUES[name](x, conv(x)))
    passes = FuseConv2dNHWC(also_float32=True)
    after = assert_same_numbers(passes, mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [FUSED]
    assert_no_second_change(passes, after)


@pytest.mark.parametrize(
    "options",
    [
        {"strides": (2, 1), "padding": (1, 0, 2, 1)},
        {"dilation": 2, "padding": 2},
        {"kernel": 1},
    ],
)
def test_of_any_geometry(options):
    x = image()
    after = assert_same_numbers(
        FuseConv2dNHWC(also_float32=True),
        module(x, conv(x, **options)),
        numbers(*SHAPE),
        rtol=1e-4,
        atol=1e-5,
    )
    assert ops(after) == [FUSED]


ONEDNN = "llvm -libs=onednn"


OF_BATCHES, OF_SIZES = (0, [(3, 6, 7), (0, 6, 7)]), (1, [(1, 6, 7), (1, 1, 7)])


@pytest.mark.parametrize("axis, shapes", [OF_BATCHES, OF_SIZES])
def test_extents_known_only_at_run_time(axis, shapes):
    """A residual may then be of one image, or one row, that is added to all."""
    x = image([*SHAPE[:axis], relay.Any(), *SHAPE[axis + 1 :]])
    mod = module(x, relay.nn.relu(relay.add(leaky(bias(conv(x))), x)))
    after, report = apply(FuseConv2dNHWC(also_float32=True, target=ONEDNN), mod)
    assert ops(after) == [FUSED, "add", "nn.relu"]
    assert "one of the tensors is, or may be, broadcast to the other" in refusals(report)
    before, fused = runner(mod, quick()), runner(after, quick(ONEDNN))
    for given in (numbers(*shape, 8) for shape in shapes):
        np.testing.assert_allclose(fused(given)[0], before(given)[0], rtol=1e-4, atol=1e-5)
    elsewhere = apply(FuseConv2dNHWC(also_float32=True, target="llvm"), mod)[1]
    assert "dynamic, for which the target has no kernel" in refusals(elsewhere)[0]


@pytest.mark.parametrize("groups, multiplier", [(8, 1), (8, 2), (2, 2)])
def test_of_groups(groups, multiplier):
    """They are fused where there is a kernel; a few filters for each channel have weights (8, 2, 1, 1)."""
    x, filters = image(), 8 * multiplier
    of_weight = (3, 3, 8 // groups, filters)
    layout = "HWIO"
    if groups == 8:
        of_weight, layout = (3, 3, 8, multiplier), "HWOI"
    options = {"padding": 1, "groups": groups, "channels": filters, "kernel_size": (3, 3)}
    weight = relay.const(numbers(*of_weight) / 3)
    y = relay.nn.conv2d(x, weight, data_layout="NHWC", kernel_layout=layout, **options)
    mod = module(x, relay.nn.relu(y))
    after, _ = apply(FuseConv2dNHWC(also_float32=True, target=ONEDNN), mod)
    assert ops(after) == [FUSED]
    torch_weight = (
        weight.data.numpy()
        .transpose((2, 3, 0, 1) if layout == "HWOI" else (3, 2, 0, 1))
        .reshape(filters, 8 // groups, 3, 3)
    )
    data = numbers(*SHAPE)
    expected = F.relu(
        F.conv2d(
            torch.from_numpy(data).permute(0, 3, 1, 2),
            torch.from_numpy(torch_weight.copy()),
            padding=1,
            groups=groups,
        )
    )
    (found,) = run(after, data)
    np.testing.assert_allclose(found, expected.permute(0, 2, 3, 1).numpy(), rtol=1e-4, atol=1e-5)
    _, report = apply(FuseConv2dNHWC(also_float32=True, target="llvm"), mod)
    assert refusals(report) == ["the target has no kernel for a grouped convolution"]


def spelled(y, name):
    def const(value):
        return relay.const(value, "float32")

    if name == "silu":
        return y * relay.sigmoid(y)
    if name == "silu, divided":
        return y / (const(1) + relay.exp(relay.negative(y)))
    if name == "gelu":
        return const(0.5) * y * (relay.erf(y / const(2**0.5)) + const(1))
    if name == "hard_swish":
        return y * relay.clip(y + const(3), 0, 6) / const(6)
    if name == "mish":
        return y * relay.tanh(relay.log(const(1) + relay.exp(y)))
    return {"sigmoid": relay.sigmoid, "tanh": relay.tanh}[name](y)


@pytest.mark.parametrize("name", ["silu", "silu, divided", "gelu", "hard_swish", "mish", "sigmoid", "tanh"])
def test_a_spelled_activation(name):
    x = image()
    mod = module(x, spelled(bias(conv(x)), name))
    passes = FuseConv2dNHWC(also_float32=True)
    after = assert_same_numbers(passes, mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [FUSED]
    assert str(after["main"].body.attrs["activation"]) == name.split(",")[0]
    assert_no_second_change(passes, after)


@pytest.mark.parametrize("name", ["silu", "gelu", "mish"])
def test_an_activation_that_half_precision_computes_in_float32(name):
    x = image(dtype="float16")
    weight = relay.const(numbers(3, 3, 8, 8, dtype="float16") / 4)
    y = relay.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO")
    mod = module(x, relay.cast(spelled(relay.cast(y, "float32"), name), "float16"))
    data = numbers(*SHAPE, dtype="float16")
    after = assert_same_numbers(FuseConv2dNHWC(), mod, data, rtol=4e-3, atol=4e-3)
    assert ops(after) == [FUSED]
    assert str(after["main"].body.attrs["activation"]) == name


def test_a_spelled_activation_behind_a_residual():
    x = image()
    mod = module(x, spelled(relay.add(conv(x), x), "silu"))
    after = assert_same_numbers(FuseConv2dNHWC(also_float32=True), mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [FUSED]
    assert str(after["main"].body.attrs["final_activation"]) == "silu"


@pytest.mark.parametrize(
    "almost",
    [
        lambda y: y * relay.sigmoid(y * relay.const(1.01)),
        lambda y: y * relay.clip(y + relay.const(3.0), 0, 5.99) / relay.const(6.0),
        lambda y: y * relay.where(y > relay.const(17.123), relay.const(2.0), relay.sigmoid(y)),
        lambda y: y * (relay.erf(y * relay.const(0.7)) + relay.const(1.0)) * relay.const(0.5),
    ],
    ids=["a scale", "a bound", "a branch", "a constant"],
)
def test_almost_an_activation(almost):
    x = image()
    after = assert_same_numbers(
        FuseConv2dNHWC(also_float32=True), module(x, almost(conv(x))), numbers(*SHAPE), rtol=1e-4, atol=1e-5
    )
    fused = next(node for node in Graph(after["main"]).nodes if op_name(node) == FUSED)
    assert str(fused.attrs["activation"]) == "none"


def test_an_activation_of_which_a_part_is_used_elsewhere():
    x = image()
    y = conv(x)
    inner = relay.sigmoid(y)
    mod = module(x, relay.Tuple([y * inner, inner]))
    after, _ = apply(FuseConv2dNHWC(also_float32=True), mod)
    fused = next(node for node in Graph(after["main"]).nodes if op_name(node) == FUSED)
    assert str(fused.attrs["activation"]) == "none"


def test_scores_to_be_rounded_stay_as_they_are():
    x = image()
    after, _ = apply(FuseConv2dNHWC(to_be="float16"), module(x, relay.sigmoid(conv(x))))
    assert ops(after) == [FUSED, "sigmoid"]


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_what_only_convolutions_read_is_squashed_before_it_is_rounded(name):
    x = image()
    squashed = spelled(conv(x), name)
    fuse = FuseConv2dNHWC(to_be="bfloat16", target="llvm -libs=onednn")
    after, _ = apply(fuse, module(x, conv(squashed)))
    assert ops(after) == [FUSED, FUSED]
    after, _ = apply(fuse, module(x, relay.Tuple([conv(squashed), relay.nn.relu(squashed)])))
    assert name in ops(after)
    after, _ = apply(fuse, module(x, relay.add(conv(x), squashed)))
    assert name in ops(after)
    after, _ = apply(FuseConv2dNHWC(to_be="bfloat16"), module(x, conv(squashed)))
    assert ops(after) == [FUSED, name, FUSED]


@pytest.mark.parametrize("layout", ["OIHW", "HWOI", "OHWI"])
def test_weights_of_any_layout(layout):
    x = image()
    passes = FuseConv2dNHWC(also_float32=True)
    (expected, _), (found, _) = (
        apply(passes, module(x, conv(x, kernel_layout=kernel_layout))) for kernel_layout in ("HWIO", layout)
    )
    assert tvm.ir.structural_equal(found, expected)


def half(dtype):
    x = image(dtype=dtype)
    weight = relay.cast(relay.const(numbers(3, 3, 8, 8) / 10), dtype)
    y = relay.nn.conv2d(
        x, weight, padding=1, channels=8, kernel_size=(3, 3), data_layout="NHWC", kernel_layout="HWIO"
    )
    y = relay.nn.relu(relay.add(y, relay.cast(vector(), dtype)))
    return relay.transform.FoldConstant()(relay.transform.InferType()(module(x, y)))


def test_of_half():
    mod = half("float16")
    after = assert_same_numbers(FuseConv2dNHWC(), mod, numbers(*SHAPE, dtype="float16"), rtol=5e-3, atol=5e-3)
    assert ops(after) == [FUSED]


def test_constants_of_bfloat16_stay_the_same_numbers():
    after, _ = apply(FuseConv2dNHWC(), half("bfloat16"))
    assert ops(after) == [FUSED]
    _, weight, bias, *_ = after["main"].body.args
    assert weight.data.dtype == "bfloat16"
    expected = (numbers(3, 3, 8, 8) / 10).transpose(3, 0, 1, 2)
    np.testing.assert_allclose(constant(weight), expected, rtol=2**-8)
    np.testing.assert_allclose(constant(bias), numbers(8, seed=3), rtol=2**-8)


# --- before InMixedPrecision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_float32_that_is_to_be_half(name, dtype):
    """One operator in half precision, of which bias and slopes are what they were."""
    x = image()
    mod = module(x, EPILOGUES[name](x, conv(x)))
    fused = FuseConv2dNHWC(to_be=dtype)(mod)
    after = InMixedPrecision(dtype)(fused)
    assert [op for op in ops(after) if op != "cast"] == [FUSED]
    (before,), (call,) = ([n for n in Graph(m["main"]).nodes if op_name(n) == FUSED] for m in (fused, after))
    assert call.checked_type.dtype == call.args[1].checked_type.dtype == dtype
    for kept, as_it_was in zip(call.args[2::2], before.args[2::2]):  # bias and slopes
        np.testing.assert_array_equal(kept.data.numpy(), as_it_was.data.numpy())
    if dtype == "float16":  # TVM has no code for bfloat16 on LLVM here
        (expected,), (found,) = run(mod, numbers(*SHAPE)), run(after, numbers(*SHAPE))
        assert np.abs(found - expected).max() < 4e-3 * np.abs(expected).max()


def test_a_bias_is_not_rounded():
    """Its error, where all else is 0 and 1, is the one rounding of the result."""
    x = image()
    weight = relay.const(np.zeros((1, 1, 8, 8), "float32"))
    y = relay.nn.conv2d(x, weight, channels=8, kernel_size=(1, 1), data_layout="NHWC", kernel_layout="HWIO")
    far, near = relay.const(np.full(8, 1 + 2**-12, "float32")), relay.const(np.full(8, -1, "float32"))
    mod = module(x, relay.add(relay.add(y, far), near))
    after = InMixedPrecision()(FuseConv2dNHWC(to_be="float16")(mod))
    (found,) = run(after, numbers(*SHAPE))
    np.testing.assert_array_equal(found, np.full(SHAPE, 2**-12, "float32"))


@pytest.mark.parametrize("what", ["weights", "bias", "slopes"])
def test_numbers_that_float16_does_not_have(what):
    x = image()
    large = relay.const(np.full(8, 1e6, "float32"))
    y = conv(x)
    if what == "weights":
        y = relay.Call(y.op, [x, relay.const(1e6 * constant(y.args[1]))], y.attrs)
    elif what == "bias":
        y = relay.add(y, large)
    else:
        y = relay.nn.prelu(y, large, axis=3)
    mod = module(x, y)
    after = InMixedPrecision()(FuseConv2dNHWC(to_be="float16")(mod))
    (expected,), (found,) = run(mod, numbers(*SHAPE)), run(after, numbers(*SHAPE))
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())
    _, report = apply(FuseConv2dNHWC(to_be="float16"), mod)
    reason = "out of the range of float16" if what == "weights" else "in float16 the result would be infinite"
    assert reason in str(report)


def test_what_is_to_be_no_half():
    with pytest.raises(ValueError, match="one of float16, bfloat16, not 'float8'"):
        FuseConv2dNHWC(to_be="float8")


# --- what lies between


def test_the_other_sum_is_the_residual_of_one():
    x = image()
    mod = module(x, relay.nn.relu(relay.add(conv(x), conv(x, seed=5, kernel=1))))
    passes = FuseConv2dNHWC(also_float32=True)
    after = assert_same_numbers(passes, mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [FUSED, FUSED]


def test_a_shared_convolution_is_a_residual_and_takes_none():
    x = image()
    shared = bias(conv(x))
    mod = module(x, relay.add(shared, bias(conv(relay.nn.relu(shared), seed=5))))
    passes = FuseConv2dNHWC(also_float32=True)
    after = assert_same_numbers(passes, mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)
    assert ops(after) == [FUSED, "nn.relu", FUSED]


def fused(make, **options):
    """A module in which the convolution is fused, and what follows is not."""
    x = image()
    return module(x, make(x, conv(x, **options)))


@pytest.mark.parametrize(
    "mod, left, reason",
    [
        (fused(lambda x, y: bias(relay.nn.relu(y))), ["add"], "added after an activation"),
        (fused(lambda x, y: relay.add(y, relay.const(numbers(6, 7, 1)))), ["add"], "not per-channel"),
        (fused(lambda x, y: clip(clip(clip(y)))), ["clip"], "two activations already"),
        (fused(lambda x, y: relay.clip(y, 1.0, -1.0)), ["clip"], "the wrong way round"),
        (fused(lambda x, y: relay.clip(y, 1e-8, 1.0)), ["clip"], "too small for half precision"),
        (fused(lambda x, y: prelu(relay.nn.relu(y))), ["nn.prelu"], "the first activation only"),
        (fused(lambda x, y: relay.nn.prelu(y, vector(7), axis=2)), ["nn.prelu"], "along the channel axis"),
        (
            fused(lambda x, y: relay.add(relay.add(y, x), relay.nn.relu(x))),
            ["nn.relu", "add"],
            "a residual already",
        ),
        (fused(lambda x, y: relay.add(clip(clip(y)), x)), ["add"], "after the final activation"),
        (fused(lambda x, y: shuffle(relay.add(y, x))), ["nn.depth_to_space"], "a residual is added"),
        (fused(lambda x, y: shuffle(y), filters=9), ["nn.depth_to_space"], "drops some of the 9"),
        (fused(lambda x, y: shuffle(y, "CRD")), ["nn.depth_to_space"], "in mode CRD"),
        (fused(lambda x, y: relay.nn.relu(shuffle(y))), ["nn.relu"], "comes after a shuffle"),
        (
            fused(lambda x, y: shuffle(shuffle(y, "DCR")), filters=16),
            ["nn.depth_to_space"],
            "shuffles already",
        ),
        (
            fused(lambda x, y: relay.Tuple([relay.nn.relu(y), y])),
            ["nn.relu"],
            "has other users",
        ),
        (fused(lambda x, y: relay.add(y, relay.nn.relu(y))), ["nn.relu", "add"], "has other users"),
        (fused(lambda x, y: relay.add(y, y)), ["add"], "has other users"),
    ],
)
def test_the_operator_stops_growing(mod, left, reason):
    passes = FuseConv2dNHWC(also_float32=True)
    after, report = apply(passes, mod)
    assert sorted(name for name in ops(after) if name != FUSED) == sorted(left)
    assert any(reason in refusal for refusal in refusals(report))
    assert_same_numbers(passes, mod, numbers(*SHAPE), rtol=1e-4, atol=1e-5)


def plain(x, weight=None, **options):
    weight = relay.const(numbers(3, 3, 8, 8).astype(x.type_annotation.dtype)) if weight is None else weight
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    inputs = [x, weight] if isinstance(weight, relay.Var) else [x]
    return module(*inputs, relay.nn.conv2d(x, weight, **{**layout, **options}))


HALF = image(dtype="float16")


@pytest.mark.parametrize(
    "mod, reason",
    [
        (plain(image()), "do not multiply float32"),
        (plain(HALF, out_dtype="float32"), "the result is float32, not float16"),
        (plain(HALF, relay.var("w", shape=(3, 3, 8, 8), dtype="float16")), "not constant"),
        (plain(HALF, relay.const(numbers(1, 1, 4, 8).astype("float16")), groups=2), "a grouped convolution"),
        (plain(image((relay.Any(), 6, 7, 8), dtype="float16")), "dynamic"),
        (plain(image((1, 1 << 14, 1 << 14, 8), dtype="float16")), "too many elements"),
        (plain(image((0, 6, 7, 8), dtype="float16")), "empty"),
    ],
)
def test_refused(mod, reason):
    after, report = apply(FuseConv2dNHWC(), mod)
    assert after.same_as(mod)
    assert len(refusals(report)) == 1 and reason in refusals(report)[0]


OF_TWO_GROUPS = numbers(3, 3, 4, 8) / 6


def of_two_groups(scale=1.0, dtype="float32"):
    return plain(image(dtype=dtype), relay.const((OF_TWO_GROUPS * scale).astype(dtype)), groups=2)


@pytest.mark.parametrize("dtype, to_be", [("float16", None), ("float32", "float16"), ("float32", "bfloat16")])
def test_groups_on_tensor_cores(dtype, to_be):
    mod = of_two_groups(dtype=dtype)
    after, _ = apply(FuseConv2dNHWC(to_be=to_be, target="cuda -arch=sm_80"), mod)
    assert ops(after) == [FUSED] and int(after["main"].body.attrs["groups"]) == 2
    data = numbers(*SHAPE)
    (found,) = run(after, data.astype(dtype))
    expected = reference.conv2d_nhwc(data, OF_TWO_GROUPS.transpose(3, 0, 1, 2), groups=2)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "groups, left", [(2, []), (8, ["nn.depth_to_space"])], ids=["of groups", "depthwise"]
)
def test_shuffles(groups, left):
    """Not depthwise ones, whose kernel for CUDA does not shuffle."""
    x = image(dtype="float16")
    weight = numbers(3, 3, 8 // groups, 8).astype("float16")
    y = plain(x, relay.const(weight), groups=groups, padding=1)["main"].body
    after, report = apply(FuseConv2dNHWC(target="cuda -arch=sm_90"), module(x, shuffle(y)))
    assert ops(after) == [FUSED, *left]
    assert ("a depthwise convolution does not shuffle" in refusals(report)) == bool(left)


@pytest.mark.parametrize(
    "mod, to_be, arch, reason",
    [
        (of_two_groups(), None, 80, "tensor cores do not multiply float32"),
        (of_two_groups(scale=1e6), "float16", 80, "a constant is out of the range of float16"),
        (of_two_groups(), "bfloat16", 75, "no kernel for a grouped convolution"),
        (of_two_groups(), "float16", 70, "no kernel for a grouped convolution"),
    ],
)
def test_groups_without_a_kernel(mod, to_be, arch, reason):
    after, report = apply(FuseConv2dNHWC(to_be=to_be, target=f"cuda -arch=sm_{arch}"), mod)
    assert after.same_as(mod)
    assert any(reason in refusal for refusal in refusals(report))


def test_nchw_is_no_match():
    x = image((1, 8, 6, 7), dtype="float16")
    mod = module(x, relay.nn.conv2d(x, relay.const(numbers(8, 8, 1, 1).astype("float16"))))
    after, report = apply(FuseConv2dNHWC(), mod)
    assert after.same_as(mod) and report.passes[0].matches == []
