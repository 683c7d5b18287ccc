"""Replace operators, when a module is built, by others that TVM computes correctly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tvm
from tvm import relay, topi

from .._strategy import ABOVE_STOCK
from .._target import is_for_llvm
from ..cudnn import batch_matmul
from . import global_pooling

LONG = 64  # bits, which hold sums of shorter integers
MANY = 4  # windows of a pooling that a number is in
FEW_TERMS = 9  # of an average of float16, which `average_pooling` widens on CPUs as it adds them
Legalize = Callable[[Any, Sequence[relay.Expr], Sequence[relay.Type]], "relay.Expr | None"]
CONVOLUTIONS = (
    *(f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose")),
    "nn.deformable_conv2d",
)
WITH_OUT_DTYPE = *CONVOLUTIONS, "nn.dense", "nn.matmul", "nn.batch_matmul"
AVERAGES = (
    *("mean", "variance", "nn.global_avg_pool2d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
    *("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"),
)
SUMS = "sum", "prod", "cumsum", "cumprod", *AVERAGES


def _erf(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    if types[0].dtype in ("float32", "float64"):
        return None
    return relay.cast(relay.erf(relay.cast(inputs[0], "float32")), types[0].dtype)


def _negative(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    dtype = types[0].dtype
    return relay.multiply(inputs[0], relay.const(-1, dtype)) if dtype.startswith("float") else None


def _power(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    """A base to the power of a boolean: LLVM emits an invalid `ldexp` for vectors of them."""
    base, exponent = inputs
    if not isinstance(exponent, relay.Call) or exponent.op.name != "cast":
        return None
    (truth,) = exponent.args
    if relay.transform.InferTypeLocal(truth).dtype != "bool":
        return None
    return relay.where(truth, base, relay.const(1, types[0].dtype))


def _cast(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    """Casts that TVM merges as if the type between held all numbers: of integers, and of clipped floats."""
    (between,) = inputs
    if not isinstance(between, relay.Call) or getattr(between.op, "name", "") != "cast":
        return None
    (source,) = between.args
    first, second = relay.transform.InferTypeLocal(source).dtype, types[0].dtype
    is_clipped = isinstance(source, relay.Call) and getattr(source.op, "name", "") == "clip"
    if second in ("bool", "bfloat16") or not ("int" in first or (is_clipped and "int" in second)):
        return None
    is_exact = np.can_cast(first, second, "safe") and not ("int64" in first and "float" in second)
    return None if is_exact else relay.cast(relay.copy(between), attrs.dtype)


def _leaky_relu(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    dtype = types[0].dtype
    if dtype not in ("float16", "bfloat16"):
        return None
    return relay.cast(relay.nn.leaky_relu(relay.cast(inputs[0], "float32"), attrs.alpha), dtype)


def _max_pool2d(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    """On CPUs, bfloat16 is widened for each window that a number is in; where these are many, once."""
    windows = math.prod(map(int, attrs.pool_size)) / math.prod(map(int, attrs.strides))
    if types[0].dtype != "bfloat16" or not is_for_llvm() or windows < MANY:
        return None
    wide = relay.Call(tvm.ir.Op.get("nn.max_pool2d"), [relay.cast(inputs[0], "float32")], attrs)
    return relay.cast(wide, "bfloat16")


def _scatter_elements(
    attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]
) -> relay.Expr | None:
    """Scatter into the part of the tensor that is as long as the indices along all other axes."""
    axis = int(attrs.axis) % len(types[0].shape)
    if _counts_rightly(axis, *types[:2]):
        return None
    data, places, source = inputs
    shapes = [list(type_.shape) for type_ in types[:2]]
    if not all(isinstance(extent, tvm.tir.IntImm) for shape in shapes for extent in shape):
        rows = [relay.reshape(each, [-1]) for each in (data, _in_a_row(data, places, axis), source)]
        return relay.reshape_like(relay.scatter_elements(*rows, 0, attrs.reduction), data)
    whole, part = ([int(extent) for extent in shape] for shape in shapes)
    part[axis] = whole[axis]
    if 0 in part:
        return None
    begin = [0] * len(part)
    changed = relay.scatter_elements(
        relay.strided_slice(data, begin, part), places, source, axis, attrs.reduction
    )
    return relay.strided_set(data, changed, begin, part)


def _counts_rightly(axis: int, whole: relay.TensorType, part: relay.TensorType) -> bool:
    """Whether TVM's own finds each element: it takes the axes before, and those behind, for one each.

    So only the first of either may have fewer indices than elements.
    """
    return all(
        isinstance(mine, tvm.tir.IntImm) and isinstance(other, tvm.tir.IntImm) and int(mine) == int(other)
        for place, (mine, other) in enumerate(zip(whole.shape, part.shape))
        if place not in (0, axis, axis + 1)
    )


def _in_a_row(data: relay.Expr, places: relay.Expr, axis: int) -> relay.Expr:
    """Where in all of the data, in a row, each index points."""
    places = relay.cast(places, "int64")
    of_data, of_places = relay.shape_of(data, "int64"), relay.shape_of(places, "int64")
    rank, zero = len(relay.transform.InferTypeLocal(data).shape), relay.const(0, "int64")
    result = zero
    for place in range(rank):
        size, count = (relay.take(shape, relay.const(place)) for shape in (of_data, of_places))
        if place == axis:
            along = relay.where(places < zero, places + size, places)
        else:
            along = relay.expand_dims(
                relay.arange(zero, count, relay.const(1, "int64"), "int64"), -1, rank - 1 - place
            )
        result = result * size + along
    return result


def _sums_in_float32(name: str) -> Legalize:
    """Accumulate in float32: a sum of thousands of float16 is off by a percent, and float32 is no slower."""
    stock = tvm.ir.Op.get(name).get_attr("FTVMLegalize")

    def legalize(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
        *of_inputs, result = types
        target = tvm.target.Target.current()
        if name in AVERAGES and "int" in result.dtype and tvm.DataType(result.dtype).bits < LONG:
            # The type holds an average, but not the sum, nor the number of elements.
            longer = [relay.cast(each, "int64") for each in inputs]
            return relay.cast(relay.Call(tvm.ir.Op.get(name), longer, attrs), result.dtype)
        if name in CONVOLUTIONS and _is_copied(name, attrs, of_inputs) and is_for_llvm():
            return _of_widened(tvm.ir.Op.get(name), stock, attrs, inputs, result)
        if name == "nn.batch_matmul" and batch_matmul.is_capable(attrs, of_inputs, result.dtype, target):
            return None  # cuDNN accumulates in float32, and needs no padding
        is_small = name.startswith("nn.avg_pool") and math.prod(map(int, attrs.pool_size)) <= FEW_TERMS
        if is_small or result.dtype != "float16" or any(type_.dtype != "float16" for type_ in of_inputs):
            return stock(attrs, inputs, types) if stock else None
        if name in global_pooling.NAMES and global_pooling.is_served(attrs, of_inputs[0], result, target):
            return None  # its kernel does
        is_known = isinstance(attrs, tvm.ir.Attrs)  # TVM does not tell Python all types
        values = {str(key): value for key, value in dict(attrs).items()} if is_known else {}
        type_key = f"relay.attrs.{type(attrs).__name__}"
        if "out_dtype" in values:
            wide = tvm.ir.make_node(type_key, **{**values, "out_dtype": "float32"})
            of_float32 = relay.TensorType(result.shape, "float32")
            computed = stock(wide, inputs, [*of_inputs, of_float32]) if stock else None
            computed = computed or relay.Call(tvm.ir.Op.get(name), list(inputs), wide)
        else:
            if "dtype" in values:
                attrs = tvm.ir.make_node(type_key, **{**values, "dtype": "float32"})
            widened = [relay.cast(each, "float32") for each in inputs]
            computed = relay.Call(tvm.ir.Op.get(name), widened, attrs)
        return relay.cast(computed, "float16")

    return legalize


def _is_copied(name: str, attrs: Any, of_inputs: Sequence[relay.TensorType]) -> bool:
    """Whether TVM's kernels for CPUs copy what a convolution in bfloat16 reads, and take it for integers.

    A copy of 1 is 16256, its bits.
    """
    if of_inputs[0].dtype != "bfloat16":
        return False
    return name != "nn.conv2d" or int(attrs.groups) > 1


def _of_widened(
    op: tvm.ir.Op, stock: Legalize | None, attrs: Any, inputs: Sequence[relay.Expr], result: relay.TensorType
) -> relay.Expr:
    """A convolution of tensors that are cast to float32 before.

    Nothing of bfloat16 is fused with it: TVM would give that memory in which there was float32.
    """
    values = {str(key): value for key, value in dict(attrs).items()}
    wide = tvm.ir.make_node(f"relay.attrs.{type(attrs).__name__}", **{**values, "out_dtype": "float32"})
    widened = [relay.cast(each, "float32") for each in inputs]
    types = [*map(relay.transform.InferTypeLocal, widened), relay.TensorType(result.shape, "float32")]
    computed = (stock(wide, widened, types) if stock else None) or relay.Call(op, widened, wide)
    return relay.cast(relay.annotation.stop_fusion(computed), result.dtype)


def _dense(stock: Legalize) -> Legalize:
    """On CPUs, as a product of a batch of one where the number of filters is known only at run time.

    TVM's own of CPUs packs the filters in blocks, for which it needs their number, and does not compile.
    """

    def legalize(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
        if not is_for_llvm() or isinstance(types[1].shape[0], tvm.tir.IntImm):
            return stock(attrs, inputs, types)
        rows, filters = (relay.expand_dims(each, 0) for each in inputs)
        return relay.squeeze(relay.nn.batch_matmul(rows, filters, out_dtype=attrs.out_dtype), [0])

    return legalize


topi.math.erf_legalize.register(["cpu", "cuda"], override=True)(_erf)
of_dense = _dense(tvm.ir.Op.get("nn.dense").get_attr("FTVMLegalize"))
tvm.ir.register_op_attr("nn.dense", "FTVMLegalize", of_dense, ABOVE_STOCK)
for name in (*WITH_OUT_DTYPE, *SUMS):
    tvm.ir.register_op_attr(name, "FTVMLegalize", _sums_in_float32(name), ABOVE_STOCK + 1)
for name, legalize in {
    "cast": _cast,
    "negative": _negative,
    "nn.leaky_relu": _leaky_relu,
    "nn.max_pool2d": _max_pool2d,
    "power": _power,
    "scatter_elements": _scatter_elements,
}.items():
    tvm.ir.register_op_attr(name, "FTVMLegalize", legalize, ABOVE_STOCK)
