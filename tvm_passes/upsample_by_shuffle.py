"""Make a transposed convolution whose kernels do not overlap a convolution and a shuffle."""

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ._convolution import as_constant, values
from ._matchers import static_shape
from ._rule import Rule, RulePass


class OfTransposedConvolution(Rule):
    """Replace nn.conv2d_transpose with a convolution by 1x1, and nn.depth_to_space of what it gives.

    Why legal: where the stride is the size of the kernel, each pixel of the result comes of one pixel and one
    place in the kernel. The convolution computes all places of the kernel as filters of their own.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("nn.conv2d_transpose")(data, weight)

    def check(self, match):
        attrs, weight = match.root.attrs, values(match.weight)
        if weight is None:
            return "the weights of the convolution are not constant"
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "IOHW"):
            return f"the layouts are {attrs.data_layout} and {attrs.kernel_layout}, not NCHW and IOHW"
        rows, columns = weight.shape[2:]
        if rows != columns or [int(stride) for stride in attrs.strides] != [rows, columns]:
            return "the kernels overlap, or leave gaps, or are not square"
        if any(int(each) != 0 for each in (*attrs.padding, *attrs.output_padding)):
            return "the convolution is padded"
        if any(int(each) != 1 for each in attrs.dilation) or int(attrs.groups) != 1:
            return "the convolution is dilated or in groups"
        if str(attrs.out_layout) not in ("", "NCHW") or _dtypes(match) != {match.data.checked_type.dtype}:
            return "the result is wanted in another layout or type"
        if static_shape(match.data) is None:
            return "the shape is dynamic"

    def rewrite(self, match):
        weight = values(match.weight)  # channel, filter, row, column
        channels, filters, block, _ = weight.shape
        deep = weight.transpose(2, 3, 1, 0).reshape(block * block * filters, channels, 1, 1)
        conv = relay.nn.conv2d(
            match.data,
            as_constant(np.ascontiguousarray(deep), match.weight.data.dtype),
            channels=len(deep),
            kernel_size=(1, 1),
        )
        return relay.nn.depth_to_space(conv, block, "NCHW", "DCR") if block > 1 else conv


class UpsampleByShuffle(RulePass):
    """Compute transposed convolutions without overlap as convolutions with a shuffle."""

    rules = (OfTransposedConvolution,)


def _dtypes(match):
    return {expr.checked_type.dtype for expr in (match.data, match.weight, match.root)}
