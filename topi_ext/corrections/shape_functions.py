"""Register shape functions for operators that TVM has none for, or one that is wrong.

Without one, an operator on a tensor whose shape is known only at run time does not compile. TVM's own of a
convolution takes the padding in front for that behind too, and its own of a pooling ignores dilation and
`ceil_mode`: the result has another shape than the kernel writes. A slice that ends before it begins has a
negative length in TVM's own, and no memory is that large.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.relay.op._tensor import elemwise_shape_func, full_shape_func
from tvm.relay.op._transform import gather_nd_shape_func
from tvm.relay.op.dyn._transform import strided_slice_shape_func
from tvm.relay.op.op import register_shape_func

from .._strategy import ABOVE_STOCK

AS_THE_INPUT = (  # the result has the shape of the first input
    *("abs", "sign", "trunc", "isnan", "isinf", "isfinite", "erf", "log10"),
    *("sin", "cos", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("nn.log_softmax", "reinterpret", "reverse", "trilu"),
    *("fixed_point_multiply", "fixed_point_multiply_per_axis"),  # of quantized convolutions
)


class _Shape(dict):
    """The sizes of a tensor by the letters of its layout, in order: of NCHW8c those of N, C, H, W and c."""

    def __init__(self, shape: te.Tensor, layout: str) -> None:
        letters = [letter for letter in str(layout) if letter.isalpha()]
        super().__init__((letter, shape[axis]) for axis, letter in enumerate(letters))

    def as_tensors(self) -> list[te.Tensor]:
        def size(place: tvm.tir.Var) -> tvm.tir.PrimExpr:
            result = tvm.tir.const(0, "int64")
            for axis, each in enumerate(self.values()):
                result = tvm.tir.Select(
                    place == axis, tvm.tir.Cast("int64", tvm.runtime.convert(each)), result
                )
            return result

        return [te.compute((len(self),), size, name="shape")]


def _spatial(layout: str) -> list[str]:
    return [letter for letter in str(layout) if letter in "DHW"]


def _padding(attrs: Any, rank: int) -> list[Any]:
    """How much is padded along each axis, on both sides together."""
    widths = list(attrs.padding)
    widths = widths * rank if len(widths) == 1 and rank > 1 else widths
    widths = widths * 2 if len(widths) == rank else widths
    return [begin + end for begin, end in zip(widths[:rank], widths[rank:])]


def _convolution(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape, kernel = _Shape(inputs[0], attrs.data_layout), _Shape(inputs[1], attrs.kernel_layout)
    axes = _spatial(attrs.data_layout)
    for axis, stride, dilation, pad in zip(axes, attrs.strides, attrs.dilation, _padding(attrs, len(axes))):
        shape[axis] = (shape[axis] + pad - (kernel[axis] - 1) * dilation - 1) // stride + 1
    _set_channels(shape, attrs, kernel["O"])
    return shape.as_tensors()


def _transposed(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape, kernel = _Shape(inputs[0], attrs.data_layout), _Shape(inputs[1], attrs.kernel_layout)
    axes = _spatial(attrs.data_layout)
    steps = zip(attrs.strides, attrs.dilation, _padding(attrs, len(axes)), attrs.output_padding)
    for axis, (stride, dilation, pad, more) in zip(axes, steps):
        shape[axis] = (shape[axis] - 1) * stride - pad + (kernel[axis] - 1) * dilation + 1 + more
    _set_channels(shape, attrs, kernel["O"] * attrs.groups)
    return shape.as_tensors()


def _set_channels(shape: _Shape, attrs: Any, of_kernel: Any) -> None:
    """The channels of a result, which may be in blocks, as in NCHW8c."""
    channels = of_kernel if attrs.channels is None else attrs.channels
    if "c" in shape:
        block = int(attrs.out_layout[len("NCHW") : -1])
        shape["C"], shape["c"] = channels // block, block
    else:
        shape["C"] = channels


def _pooling(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape = _Shape(inputs[0], attrs.layout)
    axes = _spatial(attrs.layout)
    windows = zip(attrs.pool_size, attrs.strides, attrs.dilation, _padding(attrs, len(axes)))
    for axis, (length, stride, dilation, pad) in zip(axes, windows):
        steps = shape[axis] + pad - (length - 1) * dilation - 1
        shape[axis] = (steps + (stride - 1 if attrs.ceil_mode else 0)) // stride + 1
    return shape.as_tensors()


def _adaptive_pooling(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape = _Shape(inputs[0], attrs.layout)
    shape.update(zip(_spatial(attrs.layout), attrs.output_size))
    return shape.as_tensors()


def _grid_sample(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    axes = _spatial(attrs.layout)
    shape, grid = _Shape(inputs[0], attrs.layout), _Shape(inputs[1], "".join(["NC", *axes]))
    shape.update({axis: grid[axis] for axis in axes})
    return shape.as_tensors()


def _depth_to_space(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape, block = _Shape(inputs[0], attrs.layout), attrs.block_size
    shape["C"] = shape["C"] // (block * block)
    shape.update({axis: shape[axis] * block for axis in "HW"})
    return shape.as_tensors()


def _space_to_depth(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    shape, block = _Shape(inputs[0], attrs.layout), attrs.block_size
    shape["C"] = shape["C"] * (block * block)
    shape.update({axis: shape[axis] // block for axis in "HW"})
    return shape.as_tensors()


def _matmul(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    left = _Shape(inputs[0], "KM" if attrs.transpose_a else "MK")
    right = _Shape(inputs[1], "NK" if attrs.transpose_b else "KN")
    result = _Shape(inputs[0], "MN")
    result.update(M=left["M"], N=right["N"])
    return result.as_tensors()


def _gather(attrs: Any, inputs: list[te.Tensor], _ndims: Any) -> list[te.Tensor]:
    of_indices = inputs[1]
    return [te.compute(of_indices.shape, lambda axis: of_indices[axis], name="shape")]


def _gather_nd(attrs: Any, inputs: list[te.Tensor], ndims: Any) -> list[te.Tensor]:
    if attrs.index_rank is None:  # at which TVM's own ends the process
        raise ValueError("gather_nd of a size that is known only at run time needs index_rank=")
    result: list[te.Tensor] = gather_nd_shape_func(attrs, inputs, ndims)
    return result


def _dynamic_slice(attrs: Any, inputs: list[te.Tensor], ndims: Any) -> list[te.Tensor]:
    (lengths,) = strided_slice_shape_func(attrs, inputs, ndims)
    zero = tvm.tir.const(0, "int64")
    return [te.compute(lengths.shape, lambda axis: te.max(lengths[axis], zero), name="shape")]


for name in AS_THE_INPUT:
    register_shape_func(name, False, elemwise_shape_func)
register_shape_func("bitwise_not", False, elemwise_shape_func, ABOVE_STOCK)  # TVM's own broadcasts two
OF_IMAGES = {
    "nn.depth_to_space": _depth_to_space,
    "nn.space_to_depth": _space_to_depth,
    "image.grid_sample": _grid_sample,  # TVM's own refuses NHWC
}
for name in "nn.contrib_conv2d_NCHWc", "nn.contrib_depthwise_conv2d_NCHWc":
    OF_IMAGES[name] = _convolution
for rank in 1, 2, 3:
    OF_IMAGES[f"nn.conv{rank}d"] = _convolution
    OF_IMAGES[f"nn.conv{rank}d_transpose"] = _transposed
    for kind in "max", "avg":
        OF_IMAGES[f"nn.{kind}_pool{rank}d"] = _pooling
        OF_IMAGES[f"nn.adaptive_{kind}_pool{rank}d"] = _adaptive_pooling
for name, shape_function in OF_IMAGES.items():
    register_shape_func(name, False, shape_function, ABOVE_STOCK)
# TVM's own of static lengths reads the values of its operand, which those of fused operators do not have.
register_shape_func("broadcast_to", False, full_shape_func, ABOVE_STOCK)
register_shape_func("nn.matmul", False, _matmul, ABOVE_STOCK)  # TVM's own reads rows that it never set
register_shape_func("gather", False, _gather, ABOVE_STOCK)  # TVM's own refuses to take less along other axes
register_shape_func("gather_nd", False, _gather_nd, ABOVE_STOCK)
register_shape_func("dyn.strided_slice", [False, True, True, True], _dynamic_slice, ABOVE_STOCK)
