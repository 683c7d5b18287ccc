"""Windows over images whose height or width is known only at run time compute what those of known size do."""

import functools

import numpy as np
import pytest

from tests.helpers import module, numbers, run, runner

from tvm import relay

CHANNELS = 8
SIZES = ((7, 20), (12, 9), (5, 33))


def filtered(convolve, *kernel, **options):
    """A convolution with a kernel of this shape, of which the axis that has the channels is `channels`."""
    axis = 1 if convolve is relay.nn.conv2d_transpose else 0
    channels = kernel[axis] * options.get("groups", 1) ** axis
    weights = relay.const(numbers(*kernel, seed=1))
    return lambda x: convolve(x, weights, channels=channels, kernel_size=kernel[2:], **options)


conv2d = functools.partial(filtered, relay.nn.conv2d)
conv2d_transpose = functools.partial(filtered, relay.nn.conv2d_transpose)
CONV1D = filtered(relay.nn.conv1d, 8, 8, 3, padding=(0, 1))
DEPTHWISE1D = filtered(relay.nn.conv1d, 8, 1, 3, padding=(1, 1), groups=8)
KINDS = {
    "3x3": conv2d(16, 8, 3, 3, padding=1),
    "strided, dilated": conv2d(16, 8, 3, 3, strides=(2, 1), padding=(2, 2), dilation=(2, 2)),
    "padded behind": conv2d(16, 8, 2, 2, padding=(0, 0, 1, 1)),
    "1x1": conv2d(16, 8, 1, 1),
    "depthwise": conv2d(8, 1, 3, 3, padding=(1, 0, 1, 2), groups=8),
    "depthwise, two for each": conv2d(16, 1, 3, 3, padding=1, groups=8),
    "grouped": conv2d(8, 4, 3, 3, padding=(0, 1, 2, 1), groups=2),
    "transposed": conv2d_transpose(8, 4, 2, 2, strides=(2, 2)),
    "transposed, padded": conv2d_transpose(
        *(8, 4, 3, 3), strides=(2, 2), padding=(0, 1, 1, 0), output_padding=(1, 0)
    ),
    "transposed, grouped": conv2d_transpose(8, 2, 3, 3, strides=(2, 1), groups=4),
    "of signals": lambda x: CONV1D(relay.sum(x, 2)),
    "of signals, depthwise": lambda x: DEPTHWISE1D(relay.sum(x, 2)),
    "max pool": lambda x: relay.nn.max_pool2d(
        x, (2, 2), (2, 2), dilation=(2, 1), padding=(1, 1), ceil_mode=True
    ),
    "average pool": lambda x: relay.nn.avg_pool2d(x, (3, 3), (2, 2), padding=(1, 0, 0, 2)),
    "adaptive pool": lambda x: relay.nn.adaptive_avg_pool2d(x, (4, 3)),
    "pool along an axis": lambda x: relay.nn.max_pool1d(relay.sum(x, 2), (3,), (2,), padding=(1, 1)),
    "shuffled": lambda x: relay.nn.depth_to_space(x, 2),
    "unshuffled": lambda x: relay.nn.space_to_depth(relay.concatenate([x, x], 3), 2, layout="NCHW"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_windows_over_images_of_any_size(kind):
    function = KINDS[kind]
    sizes = [(8, each[1]) for each in SIZES] if kind == "unshuffled" else SIZES
    height = 8 if kind == "unshuffled" else relay.Any()
    x = relay.var("x", shape=(relay.Any(), CHANNELS, height, relay.Any()))
    compute = runner(module(x, relay.nn.relu(function(x))))
    for batch, size in enumerate(sizes, start=1):
        array = numbers(batch, CHANNELS, *size)
        x = relay.var("x", shape=array.shape)
        (expected,), (found,) = run(module(x, relay.nn.relu(function(x))), array), compute(array)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 1e-2), ("int32", 0)])
@pytest.mark.parametrize("width", [6, None])
@pytest.mark.parametrize("rows", [5, None])
def test_products_with_any_number_of_filters(rows, width, dtype, tolerance):
    sizes = [relay.Any() if size is None else size for size in (rows, width)]
    x = relay.var("x", shape=sizes, dtype=dtype)
    w = relay.var("w", shape=(relay.Any(), sizes[1]), dtype=dtype)
    compute = runner(module(x, w, relay.nn.relu(relay.nn.dense(x, w))))
    for filters in 0, 1, 7, 16, 37:
        arrays = [(4 * numbers(size, 6, seed=seed)).astype(dtype) for seed, size in enumerate((5, filters))]
        expected = np.maximum(arrays[0] @ arrays[1].T, 0)
        (found,) = compute(*arrays)
        assert found.dtype == dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [("b", 5, 4), ("b", "m", "n"), (2, "m", 4), (2, 5, "n")])
def test_what_is_added_to_products_of_unknown_sizes(shape):
    batch, rows, columns = (relay.Any() if isinstance(size, str) else size for size in shape)
    x = relay.var("x", shape=(batch, rows, 6))
    y = relay.var("y", shape=(batch, 6, columns))
    z = relay.var("z", shape=(batch, rows, columns))
    compute = runner(module(x, y, z, relay.add(relay.nn.batch_matmul(x, y, transpose_b=False), z)))
    arrays = [numbers(2, *matrix, seed=seed) for seed, matrix in enumerate(((5, 6), (6, 4), (5, 4)))]
    (found,) = compute(*arrays)
    np.testing.assert_allclose(found, arrays[0] @ arrays[1] + arrays[2], rtol=1e-4, atol=1e-5)
