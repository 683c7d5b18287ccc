"""Half precision in Relax: what is computed in it, what is not, and that the network computes the same."""

import numpy as np
import pytest
import torch

import frontends.relax
import tvm_passes
from tests.relax.detectors import detector, found_by_torchvision, image
from tests.relax.modules import CUDA, QUICK, compiled, run
from tests.relax.test_passes import CONVOLUTION, IMAGE, NETWORKS, TARGETS, imported, of_images
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.relax import FuseConv2dNHWC, InMixedPrecision, convolution_pipeline
from tvm_passes.relax.graph import Graph, dtype_of, op_name

import tvm
from tvm import relax

needs_bfloat16 = pytest.mark.skipif(
    not (onednn.is_available() and onednn.multiplies("bfloat16")),
    reason="oneDNN has no bfloat16 for this processor",
)


def values_of(module):
    return [value for _, value in Graph(module["main"]).bindings]


def computed(module):
    """(operator, the type of its first argument) of each call but casts, in order."""
    calls = [v for v in values_of(module) if op_name(v) not in ("", "relax.astype")]
    return [(op_name(v).split(".")[-1], dtype_of(v.args[0])) for v in calls]


def in_half(module, dtype="float16"):
    with tvm_passes.recording() as report:
        result = InMixedPrecision(dtype)(module)
    relax.analysis.well_formed(result)
    (own,) = report.passes
    return result, {outcome.reason for outcome in own.refusals}


def conv(x, channels=3, scale=1.0):
    weight = relax.const(np.full((4, 3, 3, channels), scale / 30, "float32"))
    return relax.op.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="OHWI")


def number(value):
    return relax.const(value, "float32")


def test_what_comes_before_and_behind_the_convolutions_stays_float32():
    def build(x):
        first = relax.op.nn.relu(conv(relax.op.divide(x, number(255.0))))
        return relax.op.sigmoid(conv(first, 4))

    module = of_images(build)
    result, _ = in_half(module)
    assert computed(result) == [
        ("divide", "float32"),
        ("conv2d", "float16"),
        ("relu", "float16"),
        ("conv2d", "float16"),
        ("sigmoid", "float32"),  # of the sums, which are float32 and were never rounded
    ]
    assert [str(v.attrs.out_dtype) for v in values_of(result) if op_name(v) == "relax.nn.conv2d"] == [
        "float32"
    ] * 2
    x = np.random.default_rng(0).uniform(0, 255, (2, 9, 12, 3)).astype("float32")
    (expected,), (found,) = (run(compiled(each, QUICK), [x]) for each in (module, result))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    again, _ = in_half(result)
    tvm.ir.assert_structural_equal(again, result)


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_networks_compute_the_same(name):
    model, module = imported(name)
    with torch.no_grad():
        expected = model(IMAGE)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    result, refused = in_half(convolution_pipeline(QUICK)(module))
    fused = [value for value in values_of(result) if op_name(value) == CONVOLUTION]
    assert len(fused) == len(NETWORKS[name][1]) and not refused
    for call in fused:
        assert {dtype_of(call), *map(dtype_of, call.args[:2])} == {"float16"}
        assert dtype_of(call.args[2]) == "float32" and not str(call.attrs["weight_id"])
    for mine, theirs in zip(run(compiled(result, QUICK), [IMAGE.numpy()]), expected, strict=True):
        assert mine.dtype == "float32"
        np.testing.assert_allclose(mine, theirs, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_pipeline_leaves_nothing_without_a_kernel_for_cuda(name):
    _, module = imported(name)
    result = convolution_pipeline(CUDA)(module)  # in float16, since it has tensor cores
    left = {(op, dtype) for op, dtype in computed(result) if op in ("conv2d", "matmul", "conv2d_transpose")}
    assert not left and ("conv2d_nhwc", "float32") not in computed(result)


def test_regions_boxes_and_suppression_stay_float32():
    module = frontends.relax.from_pytorch(detector("both"), image())
    result = convolution_pipeline(CUDA)(module)
    graph, calls = Graph(result["main"]), {}
    for value in values_of(result):
        calls.setdefault(op_name(value), []).append(value)
    assert all(dtype_of(call.args[0]) == "float16" for call in calls[CONVOLUTION])
    for call in calls["topi_ext.multiscale_roi_align"]:
        *features, rois = graph.value(call.args[0]).fields
        assert {dtype_of(each) for each in features} == {"float16"} and dtype_of(rois) == "float32"
    for name in ("topi_ext.batched_nms", "topi_ext.paste_masks", "topi_ext.heatmaps_to_keypoints"):
        assert {dtype_of(each) for call in calls[name] for each in call.args[:2]} == {"float32"}
    assert {dtype_of(v) for name in ("relax.exp", "relax.nn.softmax") for v in calls[name]} == {"float32"}


@needs_bfloat16
def test_a_detector_in_bfloat16_finds_the_same():
    model, target = detector("faster"), TARGETS["onednn"]
    module = convolution_pipeline(target, "bfloat16")(frontends.relax.from_pytorch(model, image()))
    boxes, _, labels, count = run(compiled(module, target), [image().numpy()])
    theirs, _, their_labels = found_by_torchvision(model)
    assert abs(int(count) - len(theirs)) <= 2
    close = np.abs(boxes[None, :count] - theirs[:, None]).max(2) < 1.5
    alike = labels[None, :count] == their_labels[:, None]
    assert (close & alike).any(1).mean() > 0.7


def behind(x, build):
    """Something between two convolutions."""
    return conv(build(conv(x)), 4)


def pool(size):
    return lambda y: relax.op.nn.avg_pool2d(y, size, padding=size // 2, layout="NHWC")


STAYS = {
    "divisors": (lambda y: relax.op.divide(y, relax.op.add(y, number(3.0))), "divide", "float32"),
    "small divisors among others": (
        lambda y: relax.op.divide(y, relax.const(np.array([1e-9, 1, 1, 1], "float32"))),
        "divide",
        "float32",
    ),
    "large windows": (pool(5), "avg_pool2d", "float32"),
    "large constants": (lambda y: relax.op.multiply(y, number(1e5)), "multiply", "float32"),
    "small bounds": (lambda y: relax.op.clip(y, 1e-6, 1.0), "clip", "float32"),
    "unknown operators": (relax.op.exp, "exp", "float32"),
    "small windows": (pool(3), "avg_pool2d", "float16"),
    "constants": (lambda y: relax.op.multiply(y, number(3.0)), "multiply", "float16"),
    "bounds": (lambda y: relax.op.clip(y, 0.0, float("inf")), "clip", "float16"),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_would_be_wrong_in_half_stays_between_convolutions(what):
    build, name, dtype = STAYS[what]
    result, _ = in_half(of_images(lambda x: behind(x, build)))
    assert (name, dtype) in computed(result)
    assert {dtype for name, dtype in computed(result) if name == "conv2d"} == {"float16"}


@pytest.mark.parametrize("scale", [1e7, 1e-4])
def test_weights_out_of_range_are_refused(scale):
    result, refused = in_half(of_images(lambda x: conv(x, scale=scale)))
    assert computed(result) == [("conv2d", "float32")]
    assert refused == {"stays float32: a constant is out of the range of float16"}
    result, refused = in_half(of_images(lambda x: conv(x, scale=scale)), "bfloat16")
    assert computed(result) == [("conv2d", "bfloat16")] and not refused


def test_weights_are_not_scaled_out_of_range():
    """There would be no kernel for them on CUDA, where those of float32 have none."""
    module = of_images(lambda x: relax.op.multiply(conv(x), number(1e-6)))
    with tvm_passes.recording() as report:
        fused = FuseConv2dNHWC(CUDA, "float16")(module)
    assert {each.reason for each in report.passes[0].refusals} == {
        "the weights would be out of the range of float16"
    }
    assert computed(in_half(fused)[0]) == [("conv2d_nhwc", "float16"), ("multiply", "float32")]
    result = convolution_pipeline(CUDA)(of_images(lambda x: conv(x, scale=1e-4)))
    assert ("conv2d", "float32") in computed(result)


def test_parts_of_a_tuple():
    """A split in half precision, of which one part is a result, too; they are concatenated the other way."""

    def build(x):
        parts = relax.op.split(conv(x), 2, axis=3)
        one, other = (relax.TupleGetItem(parts, at) for at in range(2))
        return relax.Tuple([conv(relax.op.concat([other, one], 3), 4), one])

    module = of_images(build)
    result, _ = in_half(module)
    # One part has another user, so that the split stays; the concatenation does not.
    assert [each for each in computed(result) if each[0] == "conv2d"] == [("conv2d", "float16")] * 2
    x = np.random.default_rng(1).uniform(-1, 1, (2, 9, 12, 3)).astype("float32")
    for mine, theirs in zip(*(run(compiled(each, QUICK), [x]) for each in (result, module)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-3)
    result, _ = in_half(of_images(lambda x: relax.TupleGetItem(build(x), 0)))
    types = {str(value.ty) for value in values_of(result) if op_name(value) == "relax.split"}
    assert len(types) == 1 and "float16" in types.pop()


def test_types_that_the_target_lacks_are_refused():
    for target, dtype, reason in (
        (QUICK, "bfloat16", "needs oneDNN"),
        (CUDA, "int8", "dtype must be float32, float16 or bfloat16, not 'int8'"),
        (
            tvm.target.Target({"kind": "cuda", "arch": "sm_75"}, host="llvm"),
            "bfloat16",
            "no tensor cores for",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            convolution_pipeline(target, dtype)
    with pytest.raises(ValueError, match="dtype must be one of float16, bfloat16, not 'float32'"):
        InMixedPrecision("float32")
