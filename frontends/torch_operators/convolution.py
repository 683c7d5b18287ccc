"""Convolutions, and what moves pixels between channels and space."""

from __future__ import annotations

from typing import Any

from tvm import relay

from .converter import Converter, Inputs, InputTypes


def plain_convolution(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM knows `aten::_convolution` only, which traced code calls; scripted code calls these."""
    data, weight, bias, strides, padding, dilation, groups = inputs
    transposed, output_padding = False, [0] * len(strides)
    inputs = [data, weight, bias, strides, padding, dilation, transposed, output_padding, groups]
    return converter.convolution(inputs, input_types)


def pixel_unshuffle(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks the inverse of `pixel_shuffle`, which is spelled like it."""
    data, block = inputs
    batch, channels, height, width = converter.infer_shape(data)
    split = batch, channels, height // block, block, width // block, block
    blocks = relay.transpose(relay.reshape(data, split), [0, 1, 3, 5, 2, 4])
    return relay.reshape(blocks, (batch, channels * block**2, height // block, width // block))


CONVERTERS = {
    "aten::conv1d": plain_convolution,
    "aten::conv2d": plain_convolution,
    "aten::conv3d": plain_convolution,
    "aten::pixel_unshuffle": pixel_unshuffle,
}
