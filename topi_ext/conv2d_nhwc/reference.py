"""The NumPy oracle of `topi_ext.conv2d_nhwc`, computed in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .problem import Activation, GivenActivation, four_sides, pair


def conv2d_nhwc(
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    activation: GivenActivation = None,
    final_activation: GivenActivation = None,
    slope: np.ndarray | None = None,
    block_size: int = 1,
    groups: int = 1,
    scale: np.ndarray | None = None,
    residual_scale: float = 1.0,
    out_scale: float = 1.0,
    out_dtype: str = "",
    rounded: bool = True,
) -> np.ndarray:
    """The operator on arrays; `rounded=False` gives the result before it is rounded to its type."""
    (stride_y, stride_x), (dilation_y, dilation_x) = pair(strides, "strides"), pair(dilation, "dilation")
    top, left, bottom, right = four_sides(padding)
    padded = np.pad(data.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    _, rows, columns, _ = weight.shape
    height = (padded.shape[1] - (rows - 1) * dilation_y - 1) // stride_y + 1
    width = (padded.shape[2] - (columns - 1) * dilation_x - 1) // stride_x + 1
    out = np.zeros((len(data), height, width, len(weight)))
    for r in range(rows):
        for s in range(columns):
            y, x = r * dilation_y, s * dilation_x
            seen = padded[:, y : y + (height - 1) * stride_y + 1, x : x + (width - 1) * stride_x + 1]
            pixels = np.split(seen[:, ::stride_y, ::stride_x], groups, axis=3)
            filters = np.split(weight[:, r, s].astype("float64"), groups)
            out += np.concatenate([one @ other.T for one, other in zip(pixels, filters)], axis=3)
    if scale is not None:
        out *= scale.astype("float64")
    if bias is not None:
        out += bias.astype("float64")
    out = activate(Activation.of(activation, "activation"), out, slope)
    if residual is not None:
        out = out + residual.astype("float64") * np.float32(residual_scale)
    out = activate(Activation.of(final_activation, "final_activation"), out)
    out = depth_to_space(out, block_size) * np.float32(out_scale)
    if not rounded:
        return out
    dtype = out_dtype or data.dtype
    return (np.rint(out).clip(-128, 127) if dtype == "int8" else out).astype(dtype)


def activate(activation: Activation, x: np.ndarray, slope: Any = None) -> np.ndarray:
    if activation.name == "relu":
        return np.maximum(x, 0)
    if activation.name == "leaky_relu":
        return np.where(x > 0, x, x * np.float32(activation.low))
    if activation.name == "prelu":
        return np.where(x > 0, x, x * slope.astype("float64"))
    if activation.name == "clip":
        return np.clip(x, np.float32(activation.low), np.float32(activation.high))
    if activation.name in ("sigmoid", "silu"):
        return (x if activation.name == "silu" else 1) / (1 + np.exp(-x))
    if activation.name == "tanh":
        return np.tanh(x)
    if activation.name == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if activation.name == "gelu_tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if activation.name == "hard_swish":
        return x * np.clip(x + 3, 0, 6) / 6
    if activation.name == "mish":
        return x * np.tanh(np.logaddexp(0, x))
    return x


def depth_to_space(x: np.ndarray, block: int) -> np.ndarray:
    """In the order DCR: channel (i * block + j) * C' + c goes to row i, column j, channel c of the block."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, block, block, channels // block**2)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * block, width * block, -1)
