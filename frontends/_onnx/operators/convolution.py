"""Conv, ConvTranspose, deformable convolutions, and Col2Im."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import numpy as np

from tvm import relay

from ..._columns import image_of_columns
from ..._deform_conv2d import DeformConv2d
from ..._operators_of_relay import OfRelay
from ._common import Attrs, Converter, Inputs, Params, all_sizes_of, dtype_of, known, sizes_of, stock

LAYOUTS = {1: ("NCW", "IOW"), 2: ("NCHW", "IOHW"), 3: ("NCDHW", "IODHW")}


def conv_transpose(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own lacks dilation, and for `auto_pad` needs ONNX Runtime, whose version it checks."""
    inputs = _of_channels(inputs, sizes_of(inputs[1])[0])
    data, weight, bias = inputs[0], inputs[1], inputs[2]
    shape: Any = sizes_of(data)
    weights: Any = sizes_of(weight)
    _, filters, *kernel = weights
    rank: int = len(kernel)
    if rank not in LAYOUTS or None in (filters, *kernel):
        raise NotImplementedError("it needs weights of a known shape, with one to three spatial axes")
    ones = [1] * rank
    attrs.get("kernel_shape")  # the weights say the same
    strides, dilations = list(attrs.get("strides", ones)), list(attrs.get("dilations", ones))
    group, extra = attrs.get("group", 1), list(attrs.get("output_padding", [0] * rank))
    pads = list(attrs.get("pads", [0] * 2 * rank))
    auto_pad = attrs.get("auto_pad", b"NOTSET").decode()
    wanted = attrs.get("output_shape")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if wanted is not None:
        if None in shape[2:]:
            raise NotImplementedError("its attribute output_shape needs sizes that are known")
        totals = [
            s * (n - 1) + e + r - w for s, n, e, r, w in zip(strides, shape[2:], extra, reach, wanted[-rank:])
        ]
    elif auto_pad.startswith("SAME"):
        totals = [e + r - s for e, r, s in zip(extra, reach, strides)]
    elif auto_pad in ("NOTSET", "VALID"):
        totals = None
        pads = [0] * 2 * rank if auto_pad == "VALID" else pads
    else:
        raise NotImplementedError(f"its attribute auto_pad={auto_pad} is not known")
    if totals is not None:
        if min(totals) < 0:  # longer than the input reaches
            extra = [e - min(total, 0) for e, total in zip(extra, totals)]
            totals = [max(total, 0) for total in totals]
        less = [total // 2 for total in totals]
        more = [total - half for total, half in zip(totals, less)]
        pads = less + more if auto_pad == "SAME_UPPER" else more + less
    if max(dilations) > 1:
        weight = relay.nn.dilate(weight, [1, 1, *dilations])
    if any(e >= s for e, s in zip(extra, strides)):
        raise NotImplementedError("its output padding must be less than its stride")

    def convolve(data: relay.Expr, weight: relay.Expr, groups: int) -> relay.Expr:
        return getattr(relay.nn, f"conv{rank}d_transpose")(
            data,
            weight,
            channels=filters * groups,
            kernel_size=tuple(reach),
            strides=tuple(strides),
            padding=tuple(pads),
            output_padding=tuple(extra),
            groups=groups,
            data_layout=LAYOUTS[rank][0],
            kernel_layout=LAYOUTS[rank][1],
        )

    if rank == 3 and group > 1:  # for which TVM has no kernel
        parts = zip(relay.split(data, group, 1), relay.split(weight, group, 0))
        result = relay.concatenate([convolve(*part, 1) for part in parts], 1)
    else:
        result = convolve(data, weight, group)
    return result if bias is None else relay.nn.bias_add(result, bias)


def col2im(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM lacks it."""
    data = inputs[0]
    given = known(inputs[1], "image_shape"), known(inputs[2], "block_shape")
    size, kernel = (np.asarray(each).tolist() for each in given)
    rank = len(size)
    pads = attrs.get("pads", [0] * 2 * rank)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    shape = all_sizes_of(data)
    return image_of_columns(
        data, shape, dtype_of(data), size, kernel, strides, dilations, pads[:rank], pads[rank:]
    )


def deform_conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM lacks it."""
    data, weight, offset, bias, mask = inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]
    attrs.get("kernel_shape")  # the weights say the same
    rank = len(sizes_of(data)) - 2
    pads = attrs.get("pads", [0] * 2 * rank)
    convolve = DeformConv2d(
        attrs.get("strides", [1] * rank),
        pads[:rank],
        attrs.get("dilations", [1] * rank),
        attrs.get("group", 1),
        attrs.get("offset_group", 1),
    )
    return _deformed(convolve, data, weight, offset, mask, bias)


def deform_conv_of_mmcv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM lacks it: MMCV's, modulated where it has five inputs, or four without a bias."""
    data, offset, *rest = list(inputs)
    mask, weight, bias = (*rest, None)[:3] if len(rest) > 1 else (None, *rest, None)
    convolve = DeformConv2d(
        attrs.get("stride", [1, 1]),
        attrs.get("padding", [0, 0]),
        attrs.get("dilation", [1, 1]),
        attrs.get("groups", 1),
        int(attrs.get("deform_groups") or attrs.get("deformable_groups") or 1),
    )
    return _deformed(convolve, data, weight, offset, mask, bias)


def _deformed(
    convolve: DeformConv2d,
    data: relay.Expr,
    weight: relay.Expr,
    offset: relay.Expr,
    mask: relay.Expr | None,
    bias: relay.Expr | None,
) -> relay.Expr:
    if len(sizes_of(data)) != 4 or dtype_of(data) not in ("float32", "float16"):
        raise NotImplementedError("it is supported for images of float32 and float16")
    shapes = [all_sizes_of(each) for each in (data, weight, offset)]
    result = convolve(OfRelay(), data, weight, offset, mask, shapes)
    return result if bias is None else relay.nn.bias_add(result, bias)


def conv(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM forgets the channels behind a Reshape to unknown sizes, and convolves none of unknown ones."""
    if _has_filters_of_objects(inputs, attrs):
        return _filters_as_matrix(inputs[0], inputs[1], inputs[2])
    of_group = sizes_of(inputs[1])[1]
    channels = None if of_group is None else of_group * int(attrs.get("group", 1))
    return stock(importer, "Conv")(_of_channels(inputs, channels), attrs, params)


def _has_filters_of_objects(inputs: Inputs, attrs: Attrs) -> bool:
    """Whether as many pixels as the runtime knows are filters, as the kernels of SOLOv2 are."""
    filters, of_group, *kernel = sizes_of(inputs[1])
    if filters is not None or None in (of_group, *sizes_of(inputs[0])) or kernel != [1, 1]:
        return False
    attrs.get("kernel_shape"), attrs.get("auto_pad"), attrs.get("dilations")  # mean nothing for 1x1
    strides, pads = attrs.get("strides", [1, 1]), attrs.get("pads", [0] * 4)
    return [*strides, *pads, int(attrs.get("group", 1))] == [1, 1, 0, 0, 0, 0, 1]


def _filters_as_matrix(data: relay.Expr, weight: relay.Expr, bias: relay.Expr | None) -> relay.Expr:
    """TVM compiles no convolution of an unknown number of filters, which are rows of a matrix here."""
    images, channels, height, width = all_sizes_of(data)
    pixels = relay.reshape(relay.transpose(data, [0, 2, 3, 1]), [images * height * width, channels])
    product = relay.nn.dense(relay.reshape(weight, [-1, channels]), pixels)
    result = relay.transpose(relay.reshape(product, [-1, images, height, width]), [1, 0, 2, 3])
    return result if bias is None else relay.add(result, relay.reshape(bias, [1, -1, 1, 1]))


def _of_channels(inputs: Inputs, channels: int | None) -> Inputs:
    """The inputs, where the first one has the number of channels that the weights demand.

    A run checks it where other sizes are unknown, too: with a known shape, TVM compares nothing.
    """
    known = sizes_of(inputs[0])
    others = [*known[:1], *known[2:]]
    if channels is None or len(known) < 3 or known[1] is not None or None not in others:
        return inputs
    told = copy.copy(inputs)
    told[0] = relay.reshape(inputs[0], [0, channels, *[0] * (len(known) - 2)])
    return told


OF_PLUGINS: dict[str, Converter] = {
    "MMCVDeformConv2d": deform_conv_of_mmcv,
    "MMCVModulatedDeformConv2d": deform_conv_of_mmcv,
}
CONVERTERS: dict[str, Converter] = {
    "Col2Im": col2im,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DeformConv": deform_conv,
    **OF_PLUGINS,
}
