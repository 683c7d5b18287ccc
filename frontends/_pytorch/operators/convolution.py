"""Convolutions, and operators that move pixels between channels and space."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm import relay

from .converter import Convert, Converter, Inputs, InputTypes, NotConverted
from .pooling import spread
from .shapes import are_integers

FLOATS = ("float16", "float32", "float64")


def convolution(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own lacks dilated transposed convolutions, and computes some grouped ones wrongly."""
    data, weight, bias, strides, padding, dilation, transposed, output_padding, groups, *_ = inputs
    dtype = str(converter.infer_type(data).dtype)
    if dtype not in FLOATS:
        raise NotConverted(f"convolutions of {dtype} are not supported, only of {', '.join(FLOATS)}")
    rank = len(converter.infer_shape(weight)) - 2
    if not 1 <= rank <= 3:
        raise NotConverted(f"convolutions along {rank} axes are not supported, only along 1 to 3")
    strides, padding, dilation = (spread(values, rank) for values in (strides, padding, dilation))
    output_padding = spread(output_padding, rank) if transposed else [0] * rank
    if not are_integers(converter.infer_shape(weight)[0]):
        if transposed or rank != 2 or [*strides, *padding] != [1, 1, 0, 0]:
            raise NotConverted("the number of its filters is known only at run time")
        return _filters_as_matrices(converter, data, weight, bias)
    has_batch = len(converter.infer_shape(data)) == rank + 2
    data = data if has_batch else relay.expand_dims(data, 0)
    if transposed and not (int(groups) == 1 and max(dilation) == 1 and _is_plain(output_padding, strides)):
        data, weight, padding = _without_transposition(
            converter, data, weight, strides, padding, dilation, output_padding, int(groups)
        )
        strides, transposed, output_padding = [1] * rank, False, [0] * rank
    if rank == 3 and int(groups) > 1 and not transposed:
        result = _grouped_conv3d(converter, data, weight, bias, strides, padding, dilation, int(groups))
    else:
        arguments = [data, weight, bias, strides, padding, dilation, transposed, output_padding, groups]
        result = converter.stock["aten::_convolution"](arguments, input_types)
    return result if has_batch else relay.squeeze(result, [0])


def _grouped_conv3d(
    converter: Converter,
    data: relay.Expr,
    weight: relay.Expr,
    bias: relay.Expr | None,
    strides: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> relay.Expr:
    """TVM's own swaps groups and outputs if each group has one input."""
    outputs, _, *kernel = converter.infer_shape(weight)
    result = relay.nn.conv3d(
        data, weight, strides, padding, dilation, groups, channels=outputs, kernel_size=kernel
    )
    return result if bias is None else relay.nn.bias_add(result, bias)


def _filters_as_matrices(
    converter: Converter, data: relay.Expr, weight: relay.Expr, bias: relay.Expr | None
) -> relay.Expr:
    """A convolution whose number of filters or of groups is known only at run time, as of one filter, or one
    group of them, for each object: TVM's own does not compile."""
    sizes, of_image = (converter.current_op[-1].inputsAt(each).type().sizes() for each in (1, 0))
    if sizes is None or of_image is None or sizes[2:] != [1, 1] or len(of_image) != 4 or of_image[0] != 1:
        raise NotConverted(
            "the number of its filters is known only at run time, which for one image and 1x1 are imported"
        )
    channels, (height, width) = sizes[1], converter.infer_shape(data)[2:]
    groups = of_image[1] // channels  # of the example
    in_groups = relay.reshape(weight, [-1, sizes[0] // groups, channels] if groups > 1 else [1, -1, channels])
    pixels = relay.transpose(relay.reshape(data, [-1, channels, height * width]), [0, 2, 1])
    result = relay.reshape(relay.nn.batch_matmul(in_groups, pixels), [1, -1, height, width])
    return result if bias is None else relay.add(result, relay.reshape(bias, [1, -1, 1, 1]))


def _is_plain(output_padding: list[int], strides: list[int]) -> bool:
    """Whether TVM's transposed convolution supports the output padding."""
    return all(padding < stride for padding, stride in zip(output_padding, strides))


def _without_transposition(
    converter: Converter,
    data: relay.Expr,
    weight: relay.Expr,
    strides: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> tuple[relay.Expr, relay.Expr, list[int]]:
    """The data, weight and padding of the plain convolution that equals a transposed one.

    The data is dilated by the strides, the kernel flipped, and its inputs and outputs swapped.
    """
    inputs, outputs, *kernel = converter.infer_shape(weight)
    spatial = range(2, 2 + len(kernel))
    dilated = relay.nn.dilate(data, [1, 1, *strides]) if max(strides) > 1 else data
    # As much as the kernel reaches, minus the padding; if that is negative, it is a crop.
    before = [step * (size - 1) - pad for size, step, pad in zip(kernel, dilation, padding)]
    after = [room + more for room, more in zip(before, output_padding)]
    padded = relay.nn.pad(dilated, [(0, 0), (0, 0), *((max(b, 0), max(a, 0)) for b, a in zip(before, after))])
    if min(before + after) < 0:
        extents = converter.infer_shape(padded)[2:]
        begin = [max(-room, 0) for room in before]
        end = [extent - max(-room, 0) for extent, room in zip(extents, after)]
        padded = relay.strided_slice(padded, begin, end, [1] * len(kernel), axes=list(spatial))
    split = relay.reshape(weight, [groups, inputs // groups, outputs, *kernel])
    swapped = relay.transpose(split, [0, 2, 1, *(axis + 1 for axis in spatial)])
    turned = relay.reshape(swapped, [groups * outputs, inputs // groups, *kernel])
    for axis in spatial:
        turned = relay.reverse(turned, axis)
    return padded, turned, [0] * len(kernel)


def plain_convolution(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM converts `aten::_convolution` only, which traced code calls; scripted code calls these."""
    data, weight, bias, strides, padding, dilation, groups = inputs
    if isinstance(padding, str):
        return convolution_mode(converter, inputs, input_types)
    return convolution(
        converter, [data, weight, bias, strides, padding, dilation, False, [0], groups], input_types
    )


def convolution_mode(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM lacks the paddings "same" and "valid"."""
    data, weight, bias, strides, mode, dilation, groups = inputs
    kernel = converter.infer_shape(weight)[2:]
    rank = len(kernel)
    padding = [0] * rank
    if mode == "same":
        total = [step * (size - 1) for step, size in zip(spread(dilation, rank), kernel)]
        padding = [both // 2 for both in total]
        uneven = [(0, both % 2) for both in total]  # what cannot be halved goes after
        if any(map(any, uneven)):
            axes = len(converter.infer_shape(data)) - rank
            data = relay.nn.pad(data, [(0, 0)] * axes + uneven)
    return convolution(
        converter, [data, weight, bias, strides, padding, dilation, False, [0], groups], input_types
    )


def transposed_convolution(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM converts `aten::_convolution` only, which traced code calls; scripted code calls these."""
    data, weight, bias, strides, padding, output_padding, groups, dilation = inputs
    arguments = [data, weight, bias, strides, padding, dilation, True, output_padding, groups]
    return convolution(converter, arguments, input_types)


def pixel_shuffle(converter: Converter, inputs: Inputs, input_types: InputTypes) -> Any:
    """TVM's own takes images with one batch axis only."""
    data, block = inputs
    *lead, channels, height, width = converter.infer_shape(data)
    if len(lead) == 1:
        return converter.stock["aten::pixel_shuffle"](inputs, input_types)
    blocks = relay.reshape(data, [-1, channels // block**2, block, block, height, width])
    pixels = relay.transpose(blocks, [0, 1, 4, 2, 5, 3])
    return relay.reshape(pixels, [*lead, channels // block**2, height * block, width * block])


def pixel_unshuffle(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks this inverse of `pixel_shuffle`."""
    data, block = inputs
    *lead, channels, height, width = converter.infer_shape(data)
    batch = lead[0] if len(lead) == 1 else int(np.prod(lead))
    split = batch, channels, height // block, block, width // block, block
    blocks = relay.transpose(relay.reshape(data, split), [0, 1, 3, 5, 2, 4])
    return relay.reshape(blocks, (*lead, channels * block**2, height // block, width // block))


def channel_shuffle(converter: Converter, inputs: Inputs, _: InputTypes) -> Any:
    """TVM lacks it."""
    data, groups = inputs
    batch, channels, *spatial = converter.infer_shape(data)
    split = relay.reshape(data, [batch, groups, channels // groups, *spatial])
    swapped = relay.transpose(split, [0, 2, 1, *range(3, 3 + len(spatial))])
    return relay.reshape(swapped, [batch, channels, *spatial])


CONVERTERS: dict[str, Convert] = {
    "aten::_convolution": convolution,
    "aten::_convolution_mode": convolution_mode,
    "aten::conv1d": plain_convolution,
    "aten::conv2d": plain_convolution,
    "aten::conv3d": plain_convolution,
    "aten::conv_transpose1d": transposed_convolution,
    "aten::conv_transpose2d": transposed_convolution,
    "aten::conv_transpose3d": transposed_convolution,
    "aten::pixel_shuffle": pixel_shuffle,
    "aten::pixel_unshuffle": pixel_unshuffle,
    "aten::channel_shuffle": channel_shuffle,
    "aten::native_channel_shuffle": channel_shuffle,
}
