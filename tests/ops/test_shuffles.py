"""Shuffles, also where what follows reads them backwards."""

import numpy as np
import pytest

from tests.helpers import module, run

from tvm import relay

SIZE = (4, 8)
LAYOUTS = ("NCHW", "NHWC")


def _in_layout(layout, array):
    return array if layout == "NCHW" else array.transpose(0, 2, 3, 1)


def _given(channels, height, width):
    return np.arange(2 * channels * height * width, dtype="float32").reshape(2, channels, height, width)


def _to_space(x, block, mode):
    n, c, h, w = x.shape
    if mode == "DCR":
        parts = x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // block**2, h * block, w * block)


def _to_depth(x, block):
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


@pytest.mark.parametrize("axis", [None, 1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [2, 3])
def test_depth_to_space(block, mode, layout, axis):
    given = _given(2 * block**2, *SIZE)
    x = relay.var("x", shape=_in_layout(layout, given).shape)
    y = relay.nn.depth_to_space(x, block, layout, mode)
    expected = _in_layout(layout, _to_space(given, block, mode))
    _compare(x, y, _in_layout(layout, given), expected, axis)


@pytest.mark.parametrize("axis", [None, 1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [2, 4])
def test_space_to_depth(block, layout, axis):
    given = _given(2, *(block * length for length in SIZE))
    x = relay.var("x", shape=_in_layout(layout, given).shape)
    y = relay.nn.space_to_depth(x, block, layout)
    _compare(x, y, _in_layout(layout, given), _in_layout(layout, _to_depth(given, block)), axis)


def _compare(x, y, given, expected, axis):
    if axis is not None:
        y, expected = relay.reverse(y, axis), np.flip(expected, axis)
    (found,) = run(module(x, y), given)
    np.testing.assert_array_equal(found, expected)


def test_every_other_element_backwards():
    given = _given(4, *SIZE)
    x = relay.var("x", shape=given.shape)
    y = relay.strided_slice(relay.nn.depth_to_space(x, 2, mode="CRD"), [15], [-17], [-2], axes=[3])
    (found,) = run(module(x, y), given)
    np.testing.assert_array_equal(found, _to_space(given, 2, "CRD")[..., ::-2])
