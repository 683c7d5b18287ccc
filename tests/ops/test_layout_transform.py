"""Changes of layout, also where what follows reads them at an offset."""

import numpy as np
import pytest

from tests.helpers import module, run

from tvm import relay


def _given(*shape):
    return np.arange(1, np.prod(shape) + 1, dtype="float32").reshape(shape)


def _changed(shape, source, target):
    x = relay.var("x", shape=shape)
    return module(x, relay.layout_transform(x, source, target))


CHANGES = {
    ("NCHW", "NCHW4c"): ((2, 8, 3, 5), lambda x: x.reshape(2, 2, 4, 3, 5).transpose(0, 1, 3, 4, 2)),
    ("NCHW4c", "NCHW"): ((2, 2, 3, 5, 4), lambda x: x.transpose(0, 1, 4, 2, 3).reshape(2, 8, 3, 5)),
    ("NCHW8c", "NCHW4c"): (
        (1, 1, 2, 3, 8),
        lambda x: x.reshape(1, 1, 2, 3, 2, 4).transpose(0, 1, 4, 2, 3, 5).reshape(1, 2, 2, 3, 4),
    ),
    ("OIHW", "OIHW4i2o"): (
        (4, 8, 3, 3),
        lambda x: x.reshape(2, 2, 2, 4, 3, 3).transpose(0, 2, 4, 5, 3, 1),
    ),
    ("NCHW", "NHWC"): ((2, 3, 4, 5), lambda x: x.transpose(0, 2, 3, 1)),
    ("NCHW1c", "NCHW"): ((2, 6, 3, 5, 1), lambda x: x.reshape(2, 6, 3, 5)),
    ("NCHW", "NCHW1c"): ((2, 6, 3, 5), lambda x: x.reshape(2, 6, 3, 5, 1)),
    ("NCHW1c", "NCHW2c"): ((2, 6, 3, 5, 1), lambda x: x.reshape(2, 3, 2, 3, 5).transpose(0, 1, 3, 4, 2)),
    ("NCHW4c", "NHWC"): ((2, 2, 3, 5, 4), lambda x: x.transpose(0, 2, 3, 1, 4).reshape(2, 3, 5, 8)),
}


@pytest.mark.parametrize("source, target", CHANGES)
def test_elements_go_where_they_belong(source, target):
    shape, expected = CHANGES[source, target]
    (found,) = run(_changed(shape, source, target), _given(*shape))
    np.testing.assert_array_equal(found, expected(_given(*shape)))


def test_blocks_that_do_not_divide_are_filled_with_zeros():
    (found,) = run(_changed((1, 6, 2, 3), "NCHW", "NCHW4c"), _given(1, 6, 2, 3))
    filled = np.pad(_given(1, 6, 2, 3), ((0, 0), (0, 2), (0, 0), (0, 0)))
    np.testing.assert_array_equal(found, filled.reshape(1, 2, 4, 2, 3).transpose(0, 1, 3, 4, 2))


def test_of_a_batch_that_is_known_at_run_time():
    x = _given(3, 2, 2, 2, 4)
    (found,) = run(_changed((relay.Any(), 2, 2, 2, 4), "NCHW4c", "NCHW"), x)
    np.testing.assert_array_equal(found, x.transpose(0, 1, 4, 2, 3).reshape(3, 8, 2, 2))


@pytest.mark.parametrize("before", [1, 2, 4, 15, 17])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_channels_that_are_moved_last_and_padded(before, block):
    x = relay.var("x", shape=(2, 16 // block, 3, 2, block))
    y = relay.transpose(relay.layout_transform(x, f"NCHW{block}c", "NCHW"), [0, 3, 2, 1])
    width = (0, 0), (0, 0), (0, 0), (before, 0)
    given = _given(2, 16 // block, 3, 2, block)
    (found,) = run(module(x, relay.nn.pad(y, width)), given)
    channels_last = given.transpose(0, 3, 2, 1, 4).reshape(2, 2, 3, 16)
    np.testing.assert_array_equal(found, np.pad(channels_last, width))


TILES = [(1, 8, 3, 16), (2, 24, 5, 12), (1, 4, 1, 4), (2, 48, 2, 20), (1, 6, 3, 8), (1, 8, 4, 7)]


@pytest.mark.parametrize(
    "shape, dtype",
    [*((shape, "float32") for shape in TILES), *((TILES[1], dtype) for dtype in ("float16", "int8", "bool"))],
)
def test_tiles(shape, dtype):
    """Of whole tiles, of small ones, and of none."""
    x = relay.var("x", shape=shape, dtype=dtype)
    last = relay.layout_transform(x, "NCHW", "NHWC")
    given = (_given(*shape) % 100).astype(dtype)
    (found,) = run(module(x, last), given)
    np.testing.assert_array_equal(found, given.transpose(0, 2, 3, 1))
    y = relay.var("y", shape=found.shape, dtype=dtype)
    (back,) = run(module(y, relay.layout_transform(y, "NHWC", "NCHW")), found)
    np.testing.assert_array_equal(back, given)


@pytest.mark.parametrize("shape", [(2, 24, 4, 8), (1, 3, 8, 8)], ids=str)
def test_tiles_of_what_is_fused(shape):
    """Before and behind, where the tiles are those of what is written."""
    batch, channels, height, width = shape
    x, y = relay.var("x", shape=shape), relay.var("y", shape=(batch, height, width, channels))
    last = relay.layout_transform(relay.abs(x), "NCHW", "NHWC") + y
    flat = relay.nn.relu(relay.reshape(last, (batch, height * width, channels)))
    given = -_given(*shape), 30 * _given(batch, height, width, channels) - 99
    (found,) = run(module(x, y, flat), *given)
    expected = np.maximum(-given[0].transpose(0, 2, 3, 1) + given[1], 0)
    np.testing.assert_array_equal(found, expected.reshape(batch, -1, channels))
