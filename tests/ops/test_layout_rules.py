"""What computes along axes keeps its meaning where TVM changes the layout of a convolution before it."""

import numpy as np
import pytest

from tests.helpers import module, numbers, run
from tests.ops.corrected import computed
from tvm_passes import ConvertToNHWC

from tvm import relay


@pytest.mark.parametrize(
    ("channels", "axis"), [(1, [1]), (1, [-3]), (1, None), (1, [2]), (1, [1, 2]), (16, [2]), (16, None)]
)
def test_squeeze_behind_a_convolution_whose_layout_tvm_chooses(channels, axis):
    random = np.random.default_rng(0)
    weights = random.normal(size=(channels, 8, 1, 1)).astype("float32")
    image = random.normal(size=(2, 8, 1, 6)).astype("float32")
    expected = np.maximum(np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0]), 0)
    expected = expected.squeeze(None if axis is None else tuple(axis))

    def function(x):
        convolved = relay.nn.conv2d(x, relay.const(weights), channels=channels, kernel_size=(1, 1))
        return relay.nn.relu(relay.squeeze(convolved, axis=axis))

    np.testing.assert_allclose(computed(function, image), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", [lambda x: relay.split(x, 16, 1), lambda x: relay.topk(x, 2, 1)])
def test_what_takes_channels_whole_behind_a_convolution(split):
    image, weights = numbers(1, 8, 3, 5), numbers(16, 8, 1, 1, seed=1)
    convolved = np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0])

    def function(x):
        convolved = relay.nn.conv2d(x, relay.const(weights), channels=16, kernel_size=(1, 1))
        return relay.nn.relu(split(convolved)[0])

    found = computed(function, image)
    expected = convolved[:, :1] if found.shape[1] == 1 else -np.sort(-convolved, 1)[:, :2]
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)


def reductions(y):
    yield from (relay.variance(y, axis) for axis in (1, [1, 2], None))
    yield relay.variance(y, [2], exclude=True)
    yield from (relay.argmax(y, axis, keepdims=True) for axis in (1, [1, 2], None))
    yield from (relay.argmin(y, [1, 3]), relay.argmax(y, [2], exclude=True))
    yield from (relay.sum(y, [2], exclude=True), relay.max(y, [0, 2, 3], exclude=True))
    yield from (reduce(y > relay.const(0.0), 1) for reduce in (relay.any, relay.all))
    yield from (reduce(y, 1) for reduce in (relay.min, relay.mean, relay.prod))
    yield relay.nn.layer_norm(y, *[relay.const(np.ones(16, "float32"))] * 2, axis=1)
    yield relay.topk(y, 2, 1, ret_type="values")


@pytest.mark.parametrize("layout", [lambda mod: mod, ConvertToNHWC()], ids=["of the target", "NHWC"])
def test_reductions_behind_a_convolution_of_another_layout(layout):
    image, weights = numbers(2, 8, 3, 5), numbers(16, 8, 1, 1, seed=1)
    x, y = relay.var("x", shape=image.shape), relay.var("y", shape=(2, 16, 3, 5))
    behind = relay.nn.conv2d(x, relay.const(weights), channels=16, kernel_size=(1, 1))
    convolved = np.einsum("nchw,oc->nohw", image, weights[:, :, 0, 0])
    found = run(layout(module(x, relay.Tuple(list(reductions(relay.nn.relu(behind)))))), image)
    expected = run(module(y, relay.Tuple(list(reductions(relay.nn.relu(y))))), convolved)
    for each, as_it_is in zip(found, expected):
        np.testing.assert_allclose(each, as_it_is, rtol=1e-4, atol=1e-5)
