"""Clip, Round and other elementwise operators; MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from types import ModuleType

import numpy as np

from tvm_passes.engine.expressions import type_of

from tvm import relay

from ..._einsum import einsum as sums_of_products
from ..._einsum import has_diagonal
from ..._products import late_product
from ._common import Attrs, Converter, Inputs, Params, dtype_of, like, rank_of, sizes_of, stock


def clip(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own ignores a constant upper bound without a lower one, wraps integers around, and loses NaN."""
    data, dtype = inputs[0], dtype_of(inputs[0])
    bounds = [inputs[1], inputs[2]] if len(inputs) > 1 else [attrs.get("min"), attrs.get("max")]
    values = [bound.data.numpy().item() if isinstance(bound, relay.Constant) else bound for bound in bounds]
    are_known = all(isinstance(value, (float, int)) for value in values)
    if dtype.startswith("float") and are_known and values[0] <= values[1]:
        return relay.clip(data, *values)
    for bound, limit in zip(bounds, (relay.maximum, relay.minimum)):
        if bound is not None:
            data = limit(data, like(bound, data) if isinstance(bound, float) else bound)
    return data


def round_half_even(data: relay.Expr) -> relay.Expr:
    """Round to the nearest integer, halves to even; infinities, NaN and the sign of 0 are preserved."""
    inner, zero, half, one, two = relay.trunc(data), *(like(number, data) for number in (0, 0.5, 1, 2))
    outer = inner + relay.where(data < zero, zero - one, one)
    rest = relay.abs(data - inner)
    even = two * relay.trunc(outer / two)
    return relay.where(rest < half, inner, relay.where(rest > half, outer, even))


def round_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own is off by one for floats too large to have halves, and gives NaN for infinity."""
    return round_half_even(inputs[0])


def pow_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own computes integers in float32, which is exact up to 2**24 only."""
    base, exponent = inputs
    dtype = dtype_of(base)
    if dtype.startswith("float"):
        return relay.power(base, relay.cast(exponent, dtype) if dtype_of(exponent) != dtype else exponent)
    power = relay.power(relay.cast(base, "float64"), relay.cast(exponent, "float64"))
    return relay.cast(power, dtype)


def _with_axis(name: str) -> Converter:
    operator = getattr(relay, name)

    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own honours `broadcast` and `axis`, of opsets up to 6, only next to a convolution."""
        left, right = inputs
        if attrs.get("broadcast", 0) and "axis" in attrs:
            rank = rank_of(left)
            behind = rank - attrs["axis"] % rank - rank_of(right)
            right = relay.expand_dims(right, -1, behind) if behind else right
        return operator(left, right)

    return convert


def mean(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not broadcast, and sums float16 in float16."""
    dtype = dtype_of(inputs[0])
    if len(inputs) == 1:
        return inputs[0]
    if dtype != "float16":
        return reduce(relay.add, inputs) / relay.const(len(inputs), dtype)
    total = reduce(relay.add, [relay.cast(each, "float32") for each in inputs])
    return relay.cast(total / relay.const(len(inputs), "float32"), dtype)


def matmul(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own fails if batch axes of both operands broadcast, or a vector meets a batch of matrices.

    If an axis of unknown length is empty and that of the other operand has one element, it gives one.
    """
    left, right = inputs
    shapes = sizes_of(left), sizes_of(right)
    ranks = len(shapes[0]), len(shapes[1])
    static = None not in (*shapes[0], *shapes[1])
    if static and (max(ranks) < 3 or ranks[1] == 2):
        return stock(importer, "MatMul")(importer.onnx_input.of([left, right]), attrs, params)
    if min(ranks) == 1:
        left = relay.expand_dims(left, 0) if ranks[0] == 1 else left
        right = relay.expand_dims(right, 1) if ranks[1] == 1 else right
        product = matmul(importer, [left, right], attrs, params)
        return relay.squeeze(product, [axis for axis, rank in zip((-2, -1), ranks) if rank == 1])
    if not static:
        return late_product(left, right, *shapes, dtype_of(left))
    of_left, of_right = ([int(size) for size in type_of(each).shape] for each in (left, right))
    (*batch_left, rows, inner), (*batch_right, _, columns) = of_left, of_right
    batch = np.broadcast_shapes(tuple(batch_left), tuple(batch_right))

    def flat(expr: relay.Expr, axes: list) -> relay.Expr:
        shape = [*batch, *axes]
        expr = expr if list(sizes_of(expr)) == shape else relay.broadcast_to(expr, shape)
        return relay.reshape(expr, [-1, *axes]) if len(batch) != 1 else expr

    right = relay.transpose(flat(right, [inner, columns]), [0, 2, 1])
    product = relay.nn.batch_matmul(flat(left, [rows, inner]), right, out_dtype=dtype_of(left))
    return relay.reshape(product, [*batch, rows, columns])


def einsum(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs sizes that are known, and computes products of matrices element by element."""
    operands, equation, dtype = list(inputs), attrs["equation"].decode(), dtype_of(inputs[0])
    sizes = [sizes_of(operand) for operand in operands]
    if all(None not in each for each in sizes) and (has_diagonal(equation) or not dtype.startswith("float")):
        return stock(importer, "Einsum")(inputs, attrs, params)

    def product(left: relay.Expr, right: relay.Expr, *_sizes: Sequence[int | None]) -> relay.Expr:
        return matmul(importer, [left, right], {}, params)

    return sums_of_products(equation, operands, sizes, dtype, product)


def gemm(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not know `broadcast`, of opsets up to 6, and needs to know the lengths of rows."""
    attrs.get("broadcast")  # what it adds broadcasts in any
    beta = attrs.get("beta", 1.0)  # which torch gives as 0 where it adds nothing
    addend = inputs[2]
    if beta == 0:
        inputs, addend = inputs[:2], None
    summed = sizes_of(inputs[0])[0 if attrs.get("transA", 0) else -1]
    if None not in (summed, *sizes_of(inputs[1])):
        return stock(importer, "Gemm")(inputs, attrs, params)
    factors = [
        relay.transpose(inputs[place]) if attrs.get(name, 0) else inputs[place]
        for place, name in enumerate(("transA", "transB"))
    ]
    result = matmul(importer, factors, attrs, params) * like(attrs.get("alpha", 1.0), inputs[0])
    return result if addend is None else result + addend * like(beta, inputs[0])


def sign(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own gives 0 for NaN, and does not compile for unsigned numbers."""
    x, dtype = inputs[0], dtype_of(inputs[0])
    if dtype.startswith("uint"):
        return relay.minimum(x, like(1, x))
    return relay.where(relay.isnan(x), x, relay.sign(x)) if dtype.startswith("float") else relay.sign(x)


def mod(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own gives other results for floats without `fmod`, which ONNX allows from opset 26 on."""
    if not attrs.get("fmod", 0) and dtype_of(inputs[0]).startswith("float"):
        raise NotImplementedError("floats need the attribute fmod=1")
    return stock(importer, "Mod")(inputs, attrs, params)


def random(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own draws from its own generator, so its numbers match no other runtime's."""
    raise NotImplementedError("its result is random, on which no two runtimes agree")


RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
CONVERTERS: dict[str, Converter] = {
    "Add": _with_axis("add"),
    "Clip": clip,
    "Div": _with_axis("divide"),
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": matmul,
    "Mean": mean,
    "Mod": mod,
    "Mul": _with_axis("multiply"),
    "Pow": pow_,
    "Round": round_,
    "Sign": sign,
    "Sub": _with_axis("subtract"),
    **dict.fromkeys(RANDOM, random),
}
