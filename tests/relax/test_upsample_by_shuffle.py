"""Transposed convolutions in Relax, as convolutions with a shuffle."""

import numpy as np
import pytest

from tests.relax.modules import QUICK, compiled, run
from tests.relax.test_passes import LENGTHS, TARGETS, converted, of_images, operators
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.relax.upsample_by_shuffle import UpsampleByShuffle

from tvm import relax


def upsampled(x, size, strides, **options):
    weight = relax.const(np.ones((9, 2, size, size), "float32"))
    return relax.op.nn.conv2d_transpose(x, weight, strides=strides, **options)


UPSAMPLED = {
    "overlapping": (4, 2, {"padding": 1}),
    "cut by one more": (3, 2, {"padding": (1, 0, 0, 1)}),
    "rows behind": (3, 2, {"padding": 1, "output_padding": 1}),
    "more rows behind": (2, 2, {"output_padding": 1}),
    "gaps": (2, 3, {"output_padding": 2}),
    "far": (7, 3, {"padding": 5}),
    "by one": (3, 1, {"padding": 1}),
    "no squares": (4, (2, 3), {"padding": (1, 0), "output_padding": (0, 1)}),
    "by one in groups": (3, 1, {"groups": 3}),
    "in groups": (3, 2, {"groups": 3, "padding": 1, "output_padding": 1}),
    "of each channel": (4, (1, 2), {"groups": 9, "padding": 1}),
    "dilated by one": (3, 1, {"dilation": (2, 1), "padding": 1}),
    "dilated": (2, 2, {"dilation": 2, "padding": 1, "output_padding": 1}),
    "dilated in groups": (3, 3, {"dilation": (1, 3), "groups": 3}),
}


@pytest.mark.parametrize("of_type", ["float32", "bfloat16"])
def test_transposed_convolutions_are_convolutions(of_type):
    cases = UPSAMPLED if of_type == "float32" else {"overlapping": UPSAMPLED["overlapping"]}

    def build(x):
        x = relax.op.astype(x, of_type)
        results = []
        for size, stride, options in cases.values():
            numbers = np.random.default_rng(size).standard_normal((9, 2, size, size + (stride != 1)))
            weight = relax.op.astype(relax.const(numbers, "float32"), of_type)
            options = {"strides": stride, "out_dtype": "float32", **options}
            results.append(relax.op.nn.conv2d_transpose(x, weight, **options))
        return relax.Tuple(results)

    module = of_images(build, relax.TensorType((2, 9, 4, 5), "float32"))
    result, refused = converted(module, TARGETS["own"])
    assert "relax.nn.conv2d_transpose" not in operators(result) and not refused
    array = np.random.default_rng(0).random((2, 9, 4, 5), "float32")
    mine, theirs = (run(compiled(each, QUICK), [array]) for each in (result, module))
    for name, one, other in zip(cases, mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


def test_what_is_cut_of_images_of_unknown_sizes_stays():
    images = relax.TensorType((1, 9, LENGTHS["h"], 5), "float32")
    for size, stride in ((3, 2), (2, 3)):
        module = of_images(lambda x: upsampled(x, size, (stride, stride)), images)  # noqa: B023
        assert "relax.nn.conv2d_transpose" in operators(UpsampleByShuffle(target=TARGETS["onednn"])(module))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "height, target", [(4, "own")] + [(LENGTHS["h"], "onednn")] * onednn.is_available(), ids=str
)
def test_upsampled_images_may_be_known_only_at_run_time(height, target, groups):
    images = relax.TensorType((LENGTHS["n"], 9, height, 5), "float32")
    module = of_images(lambda x: relax.op.nn.relu(upsampled(x, 2, (2, 2), groups=groups)), images)
    result, refused = converted(module, TARGETS[target])
    assert "relax.nn.conv2d_transpose" not in operators(result) and not refused
    mine, theirs = compiled(result, TARGETS[target]), compiled(module)
    for count in (1, 3):
        array = np.random.default_rng(0).random((count, 9, 4, 5), "float32")
        np.testing.assert_allclose(run(mine, [array])[0], run(theirs, [array])[0], rtol=1e-5, atol=1e-5)
