"""Bring the convolutions of a float32 network, and what is between them, to half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import topi_ext.conv2d_nhwc  # noqa: F401  registers the operator

import tvm
from tvm import relay
from tvm.relay.op import op as registry
from tvm.relay.transform import mixed_precision as stock

from ._convolution import as_constant, values
from ._graph import Graph, relay_functions
from ._layouts import MULTISCALE_ROI_ALIGN
from ._matchers import op_name
from ._rounding import rounded_together

KIND = "FTVMMixedPrecisionConversionType"
CONV2D_NHWC = "topi_ext.conv2d_nhwc"
WEIGHT_LAYOUTS = {CONV2D_NHWC: "OHWI", "nn.conv2d": None, "nn.dense": "OI"}  # None: an attribute tells


def _always(_call: relay.Call, dtype: str) -> list[Any]:
    return [stock.MIXED_PRECISION_ALWAYS, dtype, dtype]


def _follow(_call: relay.Call, dtype: str) -> list[Any]:
    return [stock.MIXED_PRECISION_FOLLOW, dtype, dtype]


def _follow_in_float16(_call: relay.Call, dtype: str) -> list[Any]:
    kind = stock.MIXED_PRECISION_FOLLOW if dtype == "float16" else stock.MIXED_PRECISION_NEVER
    return [kind, dtype, dtype]


for _name, _kind in {  # what TVM does not know of
    "nn.space_to_depth": _follow,
    "layout_transform": _follow,
    CONV2D_NHWC: _always,
    MULTISCALE_ROI_ALIGN: _follow_in_float16,
}.items():
    if relay.op.get(_name).get_attr(KIND) is None:
        registry.register_mixed_precision_conversion(_name, _kind)

# The least and the greatest normal number of each type.
RANGES = {"float16": (2.0**-14, 65504.0), "bfloat16": (2.0**-126, (2 - 2.0**-7) * 2.0**127)}
LARGEST_WINDOW = 16  # of which pixels are summed in half precision

EPILOGUES = ("add", "nn.bias_add", "nn.relu", "nn.leaky_relu", "nn.prelu", "clip", "nn.depth_to_space")


def InMixedPrecision(dtype: str = "float16") -> tvm.transform.Pass:
    """Compute convolutions and matrix products in half precision, and what lies between them.

    TVM's registry says which operators gain by it, and which can follow. TVM's own ToMixedPrecision lets all
    follow that can; here an operator follows if all that uses its result is in half precision too, or if it
    is the bias, activation, residual or shuffle of a convolution. So what comes of the heads of a network,
    such as scores and corners of boxes, is computed in float32, and so is what becomes of the picture before
    the first convolution. Corners of regions stay float32 as well, bias and slopes of `topi_ext.conv2d_nhwc`,
    and operators of which a constant is too large or too small for half precision. What is computed may still
    be: float16 ends at 65504.

    Why legal: it rounds numbers to half precision, as it is asked to, and changes nothing else. The types of
    inputs and results stay. Constants are cast here, each to one of the two numbers of half precision next to
    it. It is the nearest but for weights of convolutions of pictures and of matrix products (nn.conv2d,
    nn.dense, `topi_ext.conv2d_nhwc`), of which the errors of a filter are to cancel: see `_rounding.py`.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((8, 8, 3, 3), "float32"))
    >>> y = relay.nn.relu(relay.nn.conv2d(x / relay.const(255.0), weight, padding=1))
    >>> mod = tvm.IRModule.from_expr(relay.sigmoid(relay.nn.conv2d(y, weight, padding=1)))
    >>> print(tvm_passes.as_text(tvm_passes.InMixedPrecision()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 8, 6, 10), float32] {
      %0 = divide(%x, 255f);
      %1 = cast(%0, dtype="float16");
      %2 = nn.conv2d(%1, const[(8, 8, 3, 3), float16], padding=[1, 1, 1, 1]);
      %3 = nn.relu(%2);
      %4 = nn.conv2d(%3, const[(8, 8, 3, 3), float16], padding=[1, 1, 1, 1]);
      %5 = cast(%4, dtype="float32");
      sigmoid(%5)
    }
    """
    if dtype not in RANGES:
        raise ValueError(f"InMixedPrecision: dtype is one of {', '.join(RANGES)}, not {dtype!r}")

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = relay.transform.InferType()(mod)
        for name, function in relay_functions(mod).items():
            graph = Graph(function)
            mod.update_func(name, graph.rebuilt(_Half(graph, dtype).replacements()))
        return relay.transform.InferType()(mod)

    return tvm.transform.module_pass(transform, opt_level=0, name="InMixedPrecision")


class _Half:
    """Which nodes of a graph are to be in half precision, and what they are then."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.graph, self.dtype = graph, dtype
        self.kinds = {node: kind_of(node, dtype) for node in graph.nodes if node not in graph.foreign}
        self.chosen = {node for node, kind in self.kinds.items() if kind == stock.MIXED_PRECISION_ALWAYS}
        self._add_epilogues()
        self._add_what_is_between()
        self._casts: dict[tuple[relay.Expr, str], relay.Expr] = {}

    def replacements(self) -> dict[relay.Expr, relay.Expr]:
        """{node: its value, computed in half precision, in float32}, where others use it too."""
        half: dict[relay.Expr, relay.Expr] = {}
        for node in self.graph.nodes:
            if node in self.chosen:
                half[node] = self._rewritten(node, half)
        return {
            node: relay.cast(value, "float32")
            for node, value in half.items()
            if not self._serves_the_chosen_only(node) and isinstance(node.checked_type, relay.TensorType)
        }

    def _followers(self) -> Iterator[relay.Expr]:
        return (node for node, kind in self.kinds.items() if kind == stock.MIXED_PRECISION_FOLLOW)

    def _add_epilogues(self) -> None:
        for node in self._followers():
            if op_name(node) in EPILOGUES and any(
                data in self.chosen and self.graph.users(data) == [node] for data in data_of(node)
            ):
                self.chosen.add(node)

    def _add_what_is_between(self) -> None:
        behind = set(self.chosen)  # a convolution
        candidates = []
        for node in self._followers():
            if any(data in behind for data in data_of(node)):
                behind.add(node)
                candidates.append(node)
        for node in reversed(candidates):
            if self._serves_the_chosen_only(node):
                self.chosen.add(node)
        # One part of a tuple may serve convolutions where another does not.
        self.chosen = {
            node
            for node in self.chosen
            if not isinstance(node, relay.TupleGetItem) or node.tuple_value in self.chosen
        }

    def _serves_the_chosen_only(self, node: relay.Expr) -> bool:
        return all(user in self.chosen and node in data_of(user) for user in self._users(node))

    def _users(self, node: relay.Expr) -> Iterator[relay.Expr]:
        """What uses a node, be it as part of a tuple."""
        for user in self.graph.users(node):
            yield from self.graph.users(user) if isinstance(user, relay.Tuple) else [user]

    def _rewritten(self, node: relay.Expr, half: dict[relay.Expr, relay.Expr]) -> relay.Expr:
        if isinstance(node, relay.TupleGetItem):
            return relay.TupleGetItem(half[node.tuple_value], node.index)
        data = set(data_of(node))

        def rewritten(argument: relay.Expr) -> relay.Expr:
            if isinstance(argument, relay.Tuple):
                return relay.Tuple([rewritten(field) for field in argument.fields])
            if argument in half:
                return half[argument]
            if argument not in data or not _is_float32(argument):
                return argument
            return self._cast(argument, _layout_of_weights(argument, node))

        arguments = [rewritten(argument) for argument in node.args]
        return relay.Call(node.op, arguments, _with_out_dtype(node.attrs, self.dtype), None, node.span)

    def _cast(self, expr: relay.Expr, layout: str) -> relay.Expr:
        """In half precision; `layout` is that of constant weights, or ""."""
        key = expr, layout
        if key not in self._casts:
            value = values(expr)
            if value is None:
                self._casts[key] = relay.cast(_for_one_user(expr), self.dtype)
            else:
                self._casts[key] = as_constant(_rounded(value, self.dtype, layout), self.dtype)
        return self._casts[key]


def _layout_of_weights(expr: relay.Expr, user: relay.Call) -> str:
    """How constant weights of a convolution or a matrix product lie, such as OIHW; "" if they are no such."""
    if op_name(user) not in WEIGHT_LAYOUTS or expr != user.args[1] or not isinstance(expr, relay.Constant):
        return ""
    layout = WEIGHT_LAYOUTS[op_name(user)] or str(user.attrs.kernel_layout)
    return layout if set(layout) <= set("OIHW") else ""


def _rounded(value: np.ndarray, dtype: str, layout: str) -> np.ndarray:
    """A constant, ready to be cast; if it has a layout of weights, its numbers are of the type already."""
    if not layout or not np.isfinite(value).all():
        return value
    order = [layout.index(axis) for axis in "OIHW" if axis in layout]
    weights = value.transpose(order)
    shape = (*weights.shape, 1, 1)[:4]
    return rounded_together(weights.reshape(shape), dtype).reshape(weights.shape).transpose(np.argsort(order))


def _for_one_user(expr: relay.Expr) -> relay.Expr:
    """A transpose once more, which TVM makes one kernel with the cast if nothing else reads it."""
    if op_name(expr) in ("transpose", "layout_transform"):
        return relay.Call(expr.op, expr.args, expr.attrs, None, expr.span)
    return expr


def kind_of(node: relay.Expr, dtype: str) -> int | None:
    """What TVM's registry says of a node that gives float32: whether it gains by half precision."""
    if isinstance(node, relay.TupleGetItem) and op_name(node.tuple_value) and _is_float32(node.tuple_value):
        return stock.MIXED_PRECISION_FOLLOW
    kind = node.op.get_attr(KIND) if op_name(node) and _is_float32(node) else None
    return int(kind(node, dtype)[0]) if kind is not None and _can_be(node, dtype) else None


def _can_be(node: relay.Call, dtype: str) -> bool:
    """Whether a call means the same in half precision, by its attributes and its constants."""
    if getattr(node.attrs, "dtype", None):  # it gives float32 whatever it is given
        return False
    if op_name(node) == "divide" and values(node.args[1]) is None:  # by what may become 0
        return False
    if op_name(node).startswith("nn.avg_pool") and math.prod(map(int, node.attrs.pool_size)) > LARGEST_WINDOW:
        return False
    return all(_holds(dtype, values(data)) for data in data_of(node) if _is_float32(data))


def _holds(dtype: str, value: np.ndarray | None) -> bool:
    """Whether the greatest number of a constant is a normal one of this type."""
    if value is None:
        return True
    least, most = RANGES[dtype]
    greatest = np.abs(value[np.isfinite(value)]).max(initial=0)
    return greatest == 0 or least <= greatest <= most


def data_of(node: relay.Expr) -> list[relay.Expr]:
    """What a node computes with, but for corners of regions, and bias and slopes of a fused convolution."""
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value]
    if not isinstance(node, relay.Call):
        return []
    flat = [
        field for each in node.args for field in (each.fields if isinstance(each, relay.Tuple) else [each])
    ]
    if op_name(node) == CONV2D_NHWC:
        data, weight, _bias, residual, _slope = flat
        return [data, weight, *([residual] if node.attrs["has_residual"] else [])]
    return flat[:-1] if op_name(node) == MULTISCALE_ROI_ALIGN else flat


def _is_float32(expr: relay.Expr) -> bool:
    type_ = expr.checked_type
    parts = type_.fields if isinstance(type_, relay.TupleType) else [type_]
    return all(isinstance(part, relay.TensorType) and part.dtype == "float32" for part in parts)


def _with_out_dtype(attrs: tvm.ir.Attrs, dtype: str) -> tvm.ir.Attrs:
    """Attributes that ask for a result of another type, where they ask for one."""
    if not getattr(attrs, "out_dtype", None):
        return attrs
    fields = {str(name): value for name, value in dict(attrs).items()}
    return tvm.ir.make_node(f"relay.attrs.{type(attrs).__name__}", **{**fields, "out_dtype": dtype})
