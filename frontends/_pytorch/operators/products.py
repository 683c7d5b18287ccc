"""Products of vectors and matrices, and distances."""

from __future__ import annotations

import math

from tvm import relay

from . import functions
from .converter import Converter, Inputs, InputTypes


def mv(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own also drops an axis of length 1 that is the matrix's own."""
    return converter.convert_map["aten::matmul"](inputs, input_types)


def addmm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own uses float32 factors for other dtypes."""
    added, left, right, beta, alpha = inputs
    product = converter.convert_map["aten::matmul"]([left, right], input_types[1:3])
    return _weighted(converter, product, alpha, added, beta)


def addbmm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    added, left, right, beta, alpha = inputs
    product = relay.sum(converter.convert_map["aten::matmul"]([left, right], input_types[1:3]), 0)
    return _weighted(converter, product, alpha, added, beta)


def _weighted(
    converter: Converter, product: relay.Expr, alpha: float, added: relay.Expr, beta: float
) -> relay.Expr:
    """The weighted sum; with `beta` 0, even NaN in `added` has no effect."""
    dtype = converter.infer_type_with_prelude(product).dtype
    if alpha != 1:
        product = relay.multiply(product, relay.const(alpha, dtype))
    if beta == 0:
        return product
    if beta != 1:
        added = relay.multiply(added, relay.const(beta, dtype))
    return relay.add(product, added)


def cdist_forward(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it: distances of all pairs of rows."""
    left, right, p, _mode = inputs
    dtype = converter.infer_type(left).dtype
    difference = relay.abs(relay.subtract(relay.expand_dims(left, -2), relay.expand_dims(right, -3)))
    if p == 0:
        return relay.sum(relay.cast(functions.truth(difference, dtype), dtype), -1)
    if math.isinf(p):
        return relay.max(difference, -1)
    if p == 1:
        return relay.sum(difference, -1)
    if p == 2:
        return relay.sqrt(relay.sum(relay.multiply(difference, difference), -1))
    total = relay.sum(relay.power(difference, relay.const(p, dtype)), -1)
    return relay.power(total, relay.const(1 / p, dtype))


def cdist(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it."""
    return cdist_forward(converter, inputs, input_types)


CONVERTERS = {
    "aten::_cdist_forward": cdist_forward,
    "aten::addbmm": addbmm,
    "aten::addmm": addmm,
    "aten::addmv": addmm,
    "aten::baddbmm": addmm,
    "aten::cdist": cdist,
    "aten::mv": mv,
}
