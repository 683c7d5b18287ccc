"""Reading and rebuilding convolutions, shuffles and per-channel constants, in any layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ..engine.expressions import constant, op_name, static_shape
from ..engine.rule import Refusal
from .operators import OF_A_CHANNEL
from .shuffles import Shuffle


def as_constant(array: np.ndarray, dtype: str) -> relay.Constant:
    """A constant of any Relay type, including bfloat16, to which float32 is rounded."""
    array = np.asarray(array)
    if dtype != "bfloat16":
        return relay.const(array.astype(dtype), dtype)
    bits = array.astype("float32").view("uint32")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, ties to even
    halved = np.asarray(rounded, "uint16")  # a NumPy scalar would be taken for a number, not for bits
    return relay.const(tvm.nd.empty(array.shape, dtype).copyfrom(halved))


def channel_axis(layout: str) -> int | None:
    """The axis of an image's channels, or None for a layout that splits them."""
    return layout.index("C") if layout in ("NCHW", "NHWC") else None


def channels_at(layout: str) -> int:
    """The same, for a layout that is known not to split them."""
    axis = channel_axis(layout)
    if axis is None:
        raise ValueError(f"the layout {layout} splits the channels")
    return axis


def constant_weights(conv: relay.Call) -> np.ndarray | None:
    """The weights of an nn.conv2d as (filters, channels, rows, columns), or None if they cannot be read."""
    value, layout = constant(conv.args[1]), str(conv.attrs.kernel_layout)
    if value is None or sorted(layout) != sorted("OIHW"):
        return None
    return value.transpose([layout.index(axis) for axis in "OIHW"])


def weights_of(conv: relay.Call) -> np.ndarray:
    """The same, for a convolution that `why_not_plain` found plain."""
    weights = constant_weights(conv)
    if weights is None:
        raise ValueError("the weights of the convolution are not constant")
    return weights


def with_weights(conv: relay.Call, data: relay.Expr, weights: np.ndarray, **changes: Any) -> relay.Call:
    """The nn.conv2d with other data, weights (filters, channels, rows, columns) and attributes."""
    attrs = dict(conv.attrs)
    attrs.update(channels=len(weights), kernel_size=weights.shape[2:], **changes)
    packed = weights.transpose(["OIHW".index(axis) for axis in str(conv.attrs.kernel_layout)])
    return relay.nn.conv2d(data, as_constant(packed, conv.args[1].data.dtype), **attrs)


def why_not_plain(conv: relay.Call, grouped: bool = False) -> Refusal | None:
    """Why an nn.conv2d, which may be `grouped`, is not one whose weights can be rearranged; None if it is."""
    layout = str(conv.attrs.data_layout)
    if channel_axis(layout) is None or str(conv.attrs.out_layout) not in ("", layout):
        return Refusal("the layout of the convolution splits or moves the channels")
    if int(conv.attrs.groups) != 1 and not grouped:
        return Refusal("the convolution is grouped, and channels cannot leave their group")
    if constant_weights(conv) is None:
        return Refusal("the weights of the convolution are not constant: bind them to the function")
    return None


def why_not_whole(shuffle: relay.Call) -> Refusal | None:
    """Why an nn.depth_to_space or nn.space_to_depth drops elements or splits the channels; or None.

    TVM accepts such a shuffle too, and drops what is left over.
    """
    layout, block = str(shuffle.attrs.layout), int(shuffle.attrs.block_size)
    if channel_axis(layout) is None:
        return Refusal("the layout of the shuffle splits the channels")
    extents = dict(zip(layout, shuffle.args[0].checked_type.shape))
    is_deep = op_name(shuffle) == "nn.depth_to_space"
    for axis, divisor in {"C": block**2}.items() if is_deep else {"H": block, "W": block}.items():
        if hasattr(extents[axis], "value") and int(extents[axis]) % divisor:
            return Refusal(f"the shuffle drops some of the {int(extents[axis])} elements along {axis}")
    return None


def channels_cut(cut: relay.Expr) -> tuple[int, int] | None:
    """The first of the channels in NHWC that a slice takes, and the one behind the last; None if none is."""
    if op_name(cut) != "strided_slice":
        return None
    attrs, shape = cut.attrs, static_shape(cut.args[0])
    given = (attrs.begin, attrs.end, attrs.strides)
    begin, end, strides = (list(map(int, each or ())) for each in given)
    axes = list(range(len(begin))) if attrs.axes is None else list(map(int, attrs.axes))
    if shape is None or len(shape) != 4 or set(strides) - {1} or str(attrs.slice_mode) != "end":
        return None
    bounds = dict(zip(axes, zip(begin, end)))
    first, last = bounds.pop(3, (-1, -1))
    is_of_all = all(low == 0 and high >= shape[axis] for axis, (low, high) in bounds.items())
    return (first, last) if is_of_all and 0 <= first <= last <= shape[3] else None


def pairs(conv: relay.Call) -> list[tuple[int, int, int, int]]:
    """(stride, dilation, padding before, padding after) of the rows and of the columns."""
    attrs = conv.attrs
    strides, dilation = [int(value) for value in attrs.strides], [int(value) for value in attrs.dilation]
    padding = [int(value) for value in attrs.padding]
    padding = padding * (4 // len(padding))  # one number, or two: of height and width
    return list(zip(strides, dilation, padding[:2], padding[2:]))


def of_each_channel(expr: relay.Expr, rank: int, axis: int) -> np.ndarray | None:
    """A constant, broadcast to `rank` axes, as a vector with a number per channel or one for all, or None."""
    value = constant(expr)
    if value is None or value.ndim > rank:
        return None
    value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    return value.reshape(-1) if value.size in (1, value.shape[axis]) else None


def constant_channels(call: relay.Call, axis: int) -> dict[int, np.ndarray] | None:
    """{argument: vector} for the constants of a call over an image, or None if one is not per channel."""
    name, rank = op_name(call), len(call.checked_type.shape)
    found = {}
    for index, argument in enumerate(call.args):
        if not isinstance(argument, relay.Constant):
            continue
        if name in OF_A_CHANNEL:
            is_channel = int(call.attrs.axis) % rank == axis
            is_vector = index == 1 and is_channel and len(argument.data.shape) == 1
            vector = constant(argument) if is_vector else None
        else:
            vector = of_each_channel(argument, rank, axis)
        if vector is None:
            return None
        found[index] = vector
    return found


def with_channels(
    call: relay.Call, arguments: Iterable[relay.Expr], vectors: dict[int, np.ndarray], axis: int
) -> relay.Call:
    """The call with other arguments and other per-channel constants."""
    arguments = list(arguments)
    rank = len(call.checked_type.shape)
    for index, vector in vectors.items():
        flat = op_name(call) in OF_A_CHANNEL
        shape = (-1,) if flat else (-1,) + (1,) * (rank - 1 - axis)
        arguments[index] = as_constant(vector.reshape(shape), call.args[index].data.dtype)
    return relay.Call(call.op, arguments, call.attrs)


def shuffle_of(call: relay.Call) -> Shuffle:
    """How an nn.depth_to_space or nn.space_to_depth orders channels."""
    is_dcr = op_name(call) == "nn.space_to_depth" or str(call.attrs.mode) == "DCR"
    return Shuffle(int(call.attrs.block_size), "DCR" if is_dcr else "CRD")


def depth_to_space(like: relay.Call, data: relay.Expr, mode: str | None = None) -> relay.Call:
    """The nn.depth_to_space `like`, with other data and perhaps another mode."""
    attrs = like.attrs
    return relay.nn.depth_to_space(data, int(attrs.block_size), str(attrs.layout), mode or str(attrs.mode))
