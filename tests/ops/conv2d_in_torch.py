"""The NHWC convolution as torch has it: convolution of channels-last tensors, and an operator a step."""

import torch
from torch.nn import functional

from topi_ext.conv2d_nhwc.problem import four_sides, pair


def conv2d_nhwc(
    data,
    weight,
    bias=None,
    residual=None,
    *,
    strides=1,
    padding=0,
    dilation=1,
    activation=None,
    final_activation=None,
    slope=None,
    block_size=1,
    groups=1,
):
    """The arguments of `topi_ext.conv2d_nhwc`, as tensors; in the precision that they have."""
    top, left, bottom, right = four_sides(padding)
    x, weight = data.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    if (top, left) == (bottom, right):
        padding = top, left
    else:
        x, padding = functional.pad(x, (left, right, top, bottom)), 0
    steps = pair(strides, "strides"), padding, pair(dilation, "dilation")
    x = functional.conv2d(x, weight, bias, *steps, groups)
    x = activate(x, activation, slope)
    if residual is not None:
        x = x + residual.permute(0, 3, 1, 2)
    x = activate(x, final_activation)
    return depth_to_space(x.permute(0, 2, 3, 1), block_size)


def activate(x, activation, slope=None):
    name, *constants = [activation] if activation is None or isinstance(activation, str) else activation
    if name == "relu":
        return functional.relu(x)
    if name == "leaky_relu":
        return functional.leaky_relu(x, *constants)
    if name == "prelu":
        return functional.prelu(x, slope)
    if name == "clip":
        return torch.clamp(x, *constants)
    if name in ("sigmoid", "tanh"):
        return getattr(torch, name)(x)
    if name == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return getattr(functional, name.replace("_", ""))(x) if name else x


def depth_to_space(x, block):
    if block == 1:
        return x.contiguous()
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, block, block, channels // block**2)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(batch, height * block, width * block, -1)
