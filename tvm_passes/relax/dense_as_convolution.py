"""Compute products of a matrix with constant weights as convolutions of 1x1."""

from __future__ import annotations

import math

import numpy as np

from topi_ext.conv2d_nhwc import conv2d_nhwc

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.half_precision import holds
from ..engine.contract import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule
from .convert_to_nhwc import TO_NCHW
from .graph import axes_of, dtype_of, known_shape, shape_of
from .rule_pass import rule_pass


class OfMatmul(Rule):
    """Replace matmul by constant weights with `topi_ext.conv2d_nhwc`, each row an image of one pixel.

    Why legal: it is the same sum of products, in float32.
    """

    data, weight = wildcard(), wildcard()
    pattern = is_op("relax.matmul")(data, weight)

    def __init__(self, to_be: str | None = None) -> None:
        self.to_be = to_be

    def plan(self, match: Match) -> Answer | Refusal:
        data, weight = shape_of(match.data), match.graph.constant(match.weight)
        if weight is None or weight.ndim != 2 or match.data.ty.ndim < 2:
            return NO_MATCH
        if data is None or 0 in (*data, *weight.shape):
            return Refusal("a shape is dynamic, or a tensor empty")
        if {dtype_of(match.data), dtype_of(match.weight), dtype_of(match.root)} != {"float32"}:
            return Refusal("the types are not all float32")
        if self.to_be and not holds(self.to_be, weight):
            return Refusal(f"the weights are out of the range of {self.to_be}")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        (*rows, length), weight = known_shape(match.data), match.graph.constant(match.weight)
        filters = np.ascontiguousarray(weight.T).reshape(-1, 1, 1, length)
        pixels = relax.op.reshape(match.data, (math.prod(rows), 1, 1, length))
        products = conv2d_nhwc(pixels, relax.const(filters, "float32"))
        return relax.op.reshape(products, (*rows, len(filters)))


class OfTransposedPixels(Rule):
    """Flatten images from NHWC as they are, where they are transposed to NCHW before a matmul.

    Why legal: a sum is over the same products in another order, in which the constant weights are put.
    Nothing else reads what is in between.
    """

    data, weight = wildcard(), wildcard()
    moved = is_op("relax.permute_dims")(data)
    flat = is_op("relax.reshape")(moved, wildcard())
    pattern = is_op("relax.matmul")(flat, weight)

    def where(self, match: Match) -> bool:
        return match.data.ty.ndim == 4 and axes_of(match.moved) == TO_NCHW

    def plan(self, match: Match) -> Answer | Refusal:
        weight, data = match.graph.constant(match.weight), shape_of(match.data)
        if weight is None or weight.ndim != 2 or data is None:
            return NO_MATCH
        if shape_of(match.flat) != (data[0], math.prod(data[1:])):
            return NO_MATCH
        if match.used_elsewhere(match.moved, match.flat):
            return Refusal("the transposed or flattened images have other users")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        (count, height, width, channels), weight = known_shape(match.data), match.graph.constant(match.weight)
        by_pixel = weight.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(weight.shape)
        flat = relax.op.reshape(match.data, (count, len(weight)))
        weight = relax.const(np.ascontiguousarray(by_pixel), dtype_of(match.weight))
        return relax.Call(match.root.op, [flat, weight], match.root.attrs)


def DenseAsConvolution(to_be: str | None = None) -> tvm.transform.Pass:
    """Compute fully connected layers as convolutions: TVM has no schedule for a matmul on LLVM.

    Bias and activation stay behind it. On CUDA, the operator has no kernel for float32,
    only for half precision, in which `InMixedPrecision` is `to_be` computing it.
    """
    return rule_pass("DenseAsConvolution", OfTransposedPixels(), OfMatmul(to_be))
