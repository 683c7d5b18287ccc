"""Products of vectors and matrices, and distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tvm import relay

from ..._matrices import LARGEST_SOLVED, MOST_COFACTORS, inverse_by_cofactors, solved
from ..._products import late_product
from . import functions
from .converter import Converter, Inputs, InputTypes, NotConverted, bind, known_value
from .shapes import are_integers, as_number


def matmul(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes no number of matrices, nor a length of the axis summed, that is known at run time."""
    left, right = inputs
    shapes = [converter.infer_shape_with_prelude(each) for each in inputs]
    if are_integers(*shapes[0], *shapes[1]) or max(map(len, shapes)) < 2:
        return converter.stock["aten::matmul"](inputs, input_types)
    of_left, of_right = ([as_number(extent) for extent in shape] for shape in shapes)
    if len(of_left) == 1:
        left, of_left = relay.expand_dims(left, 0), [1, *of_left]
    if len(of_right) == 1:
        right, of_right = relay.expand_dims(right, 1), [*of_right, 1]
    product = late_product(left, right, of_left, of_right, converter.infer_type_with_prelude(left).dtype)
    vectors = [axis for axis, shape in zip((-2, -1), shapes) if len(shape) == 1]
    return relay.squeeze(product, vectors) if vectors else product


def mv(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own also drops an axis of length 1 that is the matrix's own."""
    return converter.convert_map["aten::matmul"](inputs, input_types)


def addmm(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own uses float32 factors for other dtypes."""
    added, left, right, beta, alpha = inputs
    product = converter.convert_map["aten::matmul"]([left, right], input_types[1:3])
    return _weighted(converter, product, alpha, added, beta)


def quantized_linear(name: str, converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM's own takes matrices only."""
    data, *others = inputs
    shape = converter.infer_shape(data)
    if len(shape) == 2:
        return converter.stock[name]([data, *others], input_types)
    product = converter.stock[name]([relay.reshape(data, [-1, shape[-1]]), *others], input_types)
    filters = converter.infer_shape(product)[-1]
    return relay.reshape(product, [*shape[:-1], filters])


def int_mm(_converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it: of int8, summed in int32."""
    left, right = inputs
    return relay.nn.dense(left, relay.transpose(right), out_dtype="int32")


def weight_int8pack_mm(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it: weights of int8 that have a scale for each filter."""
    data, weight, scales = inputs
    dtype = converter.infer_type(data).dtype
    return relay.multiply(relay.nn.dense(data, relay.cast(weight, dtype)), scales)


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


def inverse(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it. Of small matrices, by cofactors, of others by elimination, in float64."""
    data = inputs[0]
    *lead, _rows, size = converter.infer_shape_with_prelude(data)
    if size > MOST_COFACTORS:
        unit = np.broadcast_to(np.eye(size), (*lead, size, size))
        return linalg_solve(converter, [data, relay.const(unit, "float64"), True], input_types)
    return inverse_by_cofactors(data, lead, size, converter.infer_type(data).dtype)


def linalg_solve(converter: Converter, inputs: Inputs, _: InputTypes) -> relay.Expr:
    """TVM lacks it. Of small matrices, in float64; a singular one gives infinity or NaN, no error."""
    matrix, right, left = inputs
    (*lead, rows, size), shape = map(converter.infer_shape_with_prelude, (matrix, right))
    if size > LARGEST_SOLVED:
        raise NotConverted(f"equations of up to {LARGEST_SOLVED} unknowns can be solved, these have {size}")
    dtype = converter.infer_type_with_prelude(matrix).dtype
    is_vector = len(shape) == 1 or list(shape) == [*lead, rows]  # as torch decides
    known = [known_value(each) for each in (matrix, right)]
    if all(each is not None for each in known):
        solution = torch.linalg.solve(*(torch.tensor(each, dtype=torch.float64) for each in known), left=left)
        return relay.const(solution.numpy(), dtype)
    matrix, right = (relay.cast(each, "float64") for each in (matrix, right))
    if is_vector:
        right, shape = relay.expand_dims(right, -1), (*shape, 1)
    if not left:
        matrix, right, shape = (
            _transposed(matrix, 2 + len(lead)),
            _transposed(right, len(shape)),
            _swapped(shape),
        )
    lead = np.broadcast_shapes(lead, shape[:-2])
    both = [
        relay.broadcast_to(each, [*lead, size, columns])
        for each, columns in ((matrix, size), (right, shape[-1]))
    ]
    result = solved(relay.concatenate(both, -1), size, size + shape[-1])
    if not left:
        result = _transposed(result, 2 + len(lead))
    return relay.cast(relay.squeeze(result, [-1]) if is_vector else result, dtype)


def cov(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """TVM lacks it, and torch's own definition looks at the numbers: the covariance of rows."""
    data, correction, fweights, aweights = inputs
    if fweights is not None or aweights is not None:
        raise NotConverted("its observations have weights")
    shape = list(converter.infer_shape_with_prelude(data))
    dtype = converter.infer_type(data).dtype
    if not all(isinstance(size, int) for size in shape):
        raise NotConverted("it takes a tensor whose shape is known only at run time")
    if not functions.is_float(dtype):
        dtype, data = "float32", functions.cast(data, dtype, "float32")
    rows, count = math.prod(shape[:-1]), shape[-1] if shape else 1
    rest = relay.reshape(data, [rows, count])
    rest = relay.subtract(rest, relay.mean(rest, 1, keepdims=True))
    transposed = relay.transpose(rest)
    products = converter.convert_map["aten::matmul"]([rest, transposed], [dtype, dtype])
    divided = relay.divide(products, relay.const(max(count - correction, 0), dtype))
    return divided if rows > 1 else relay.reshape(divided, [])


def corrcoef(converter: Converter, inputs: Inputs, input_types: InputTypes) -> relay.Expr:
    """As `cov`."""
    covariance = cov(converter, [inputs[0], 1, None, None], input_types)
    shape = converter.infer_shape(covariance)
    if not shape:
        return relay.divide(covariance, covariance)
    places = np.arange(shape[0])
    deviation = relay.sqrt(relay.take(relay.reshape(covariance, [-1]), relay.const(places * (shape[0] + 1))))
    by_rows = relay.divide(covariance, relay.expand_dims(deviation, 1))
    return relay.clip(relay.divide(by_rows, deviation), -1.0, 1.0)


def _transposed(matrix: relay.Expr, rank: int) -> relay.Expr:
    return relay.transpose(matrix, _swapped(range(rank)))


def _swapped(axes: Sequence[int]) -> list[int]:
    *lead, row, column = axes
    return [*lead, column, row]


CONVERTERS = {
    "aten::_cdist_forward": cdist_forward,
    "aten::_int_mm": int_mm,
    "aten::_weight_int8pack_mm": weight_int8pack_mm,
    "aten::addbmm": addbmm,
    "aten::addmm": addmm,
    "aten::addmv": addmm,
    "aten::baddbmm": addmm,
    "aten::bmm": matmul,
    "aten::cdist": cdist,
    "aten::corrcoef": corrcoef,
    "aten::cov": cov,
    "aten::inverse": inverse,
    "aten::linalg_inv": inverse,
    "aten::linalg_solve": linalg_solve,
    "aten::matmul": matmul,
    "aten::mm": matmul,
    "aten::mv": mv,
    **{
        f"quantized::{name}": bind(quantized_linear, f"quantized::{name}")
        for name in ("linear", "linear_relu")
    },
}
