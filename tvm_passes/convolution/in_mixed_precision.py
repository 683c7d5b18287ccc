"""Convert the convolutions of a float32 network, and what is between them, to half precision."""

from __future__ import annotations

from functools import partial

from topi_ext.conv2d_nhwc.problem import INT8

import tvm
from tvm import relay

from ..analysis.convolution import as_constant
from ..analysis.half_precision import RANGES, ChosenForHalf
from ..analysis.operators import ACTIVATIONS, MOVED, OF_A_CHANNEL, SAME, TAKEN, known_of
from ..analysis.precision import (
    CONV2D_NHWC,
    data_of,
    follows,
    gains,
    gives_int8,
    is_float32,
    why_not_half,
)
from ..engine.expressions import constant, location, op_name
from ..engine.graph import Graph
from ..engine.module_pass import Pass
from ..engine.report import PassReport
from ..engine.typed import typed
from .rounding import rounded_constant

WEIGHT_LAYOUTS = {CONV2D_NHWC: "OHWI", "nn.conv2d": None, "nn.dense": "OI"}  # None: an attribute tells
TO_INT8 = ("multiply", "round", "clip", "cast")  # as `quantize.numbers.quantized` rounds
EPILOGUES = ("add", *OF_A_CHANNEL, *ACTIVATIONS, "nn.depth_to_space")


class InMixedPrecision(Pass):
    """Compute convolutions and matrix products in half precision, and what lies between them.

    TVM's registry says which operators gain from it, and which can follow. TVM's own ToMixedPrecision lets
    all follow that can; here an operator follows if all users of its result are in half precision too, or
    round it to int8, or if it is a RoIAlign that rounds its own result, or if it is the bias, activation,
    residual or shuffle of a convolution. So what is computed from the heads of a network, such as scores and
    box corners, is in float32, and so is preprocessing before the first convolution. Region corners stay
    float32 as well, as do bias and slopes of `topi_ext.conv2d_nhwc`, and operators with a constant too large
    or too small for half precision. Computed values may still be too large or too small: float16 ends at
    65504.

    Why legal: it rounds numbers to half precision, as requested, and changes nothing else. The types of
    inputs and results stay. Constants are cast here, each to one of its two neighbours in half precision:
    the nearest, except for weights of convolutions of images and of matrix products (nn.conv2d, nn.dense,
    `topi_ext.conv2d_nhwc`), where the errors of a filter are to cancel: see `rounding.py`.

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

    def __init__(self, dtype: str = "float16") -> None:
        if dtype not in RANGES:
            raise ValueError(f"InMixedPrecision: dtype must be one of {', '.join(RANGES)}, not {dtype!r}")
        super().__init__(partial(_in_half, dtype=dtype))


def _in_half(mod: tvm.IRModule, report: PassReport, dtype: str) -> tvm.IRModule:
    mod, graphs = typed(mod)
    for name, graph in graphs.items():
        half = _Half(graph, dtype)
        for node, reason in half.why_not.items():
            if reason is None:
                report.rewrote(report.name, location(node))
            else:
                report.refused(report.name, location(node), reason)
        mod.update_func(name, graph.rebuilt(half.replacements()))
    return relay.transform.InferType()(mod)


class _Half(ChosenForHalf):
    """Which nodes of a graph to convert to half precision, and what they become."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.graph, self.dtype = graph, dtype
        nodes = [node for node in graph.nodes if node not in graph.foreign]
        self.why_not = {node: why_not_half(node, dtype) for node in nodes if gains(node, dtype)}
        followers = [
            node
            for node in nodes
            if follows(node, dtype)
            and why_not_half(node, dtype) is None
            and not self.rounds_to_int8(node)  # of more digits than half precision has
        ]
        super().__init__([node for node, reason in self.why_not.items() if reason is None], followers)
        self._casts: dict[tuple[relay.Expr, str], relay.Expr] = {}

    def replacements(self) -> dict[relay.Expr, relay.Expr]:
        """{node: its value, cast to float32 from half precision}, for nodes that others use too.

        A convolution that gives int8 is among them in any case.
        """
        half: dict[relay.Expr, relay.Expr] = {}
        for node in self.graph.nodes:
            if node in self.chosen:
                half[node] = self._rewritten(node, half)
        return {
            node: relay.cast(value, "float32") if is_float32(node) else value
            for node, value in half.items()
            if isinstance(node.checked_type, relay.TensorType)
            and not (is_float32(node) and self.serves_the_chosen_only(node))
        }

    def data_of(self, node: relay.Expr) -> list[relay.Expr]:
        return data_of(node)

    def users(self, node: relay.Expr) -> list[relay.Expr]:
        users: list[relay.Expr] = []
        for user in self.graph.users(node):
            users += self.graph.users(user) if isinstance(user, relay.Tuple) else [user]
        return users

    def is_epilogue(self, node: relay.Expr) -> bool:
        return op_name(node) in EPILOGUES

    def moved_by(self, node: relay.Expr) -> list[relay.Expr]:
        is_moved = isinstance(node, relay.TupleGetItem) or known_of(node).elements in (SAME, MOVED, TAKEN)
        if isinstance(node.checked_type, relay.TupleType):  # each of its fields is cast, but not the tuple
            is_moved &= all(map(self.is_field, self.users(node)))
        return [data for data in data_of(node) if is_float32(data)] if is_moved else []

    def is_field(self, node: relay.Expr) -> bool:
        return isinstance(node, relay.TupleGetItem)

    def is_int8(self, node: relay.Expr) -> bool:
        return _is_int8(node)

    def gives_int8(self, node: relay.Expr) -> bool:
        return gives_int8(node)

    def rounds_to_int8(self, node: relay.Expr) -> bool:
        """Whether this is the first of the operators that do."""
        for name in TO_INT8[:-1]:
            users = self.graph.users(node)
            if op_name(node) != name or len(users) != 1:
                return False
            (node,) = users
        return op_name(node) == TO_INT8[-1] and _is_int8(node)

    def _rewritten(self, node: relay.Expr, half: dict[relay.Expr, relay.Expr]) -> relay.Expr:
        if isinstance(node, relay.TupleGetItem):
            return relay.TupleGetItem(half[node.tuple_value], node.index)
        data = set(data_of(node))

        def rewritten(argument: relay.Expr) -> relay.Expr:
            if isinstance(argument, relay.Tuple):
                return relay.Tuple([rewritten(field) for field in argument.fields])
            if not is_float32(argument):  # of a convolution that gives int8, its replacement
                return argument
            if argument in half:
                return half[argument]
            if argument not in data:
                return argument
            return self._cast(argument, _layout_of_weights(argument, node))

        arguments = [rewritten(argument) for argument in node.args]
        return relay.Call(node.op, arguments, _with_out_dtype(node.attrs, self.dtype), None, node.span)

    def _cast(self, expr: relay.Expr, layout: str) -> relay.Expr:
        """An operand in half precision; `layout` is that of constant weights, or ""."""
        key = expr, layout
        if key not in self._casts:
            value = constant(expr)
            if value is None:
                self._casts[key] = relay.cast(_for_one_user(expr), self.dtype)
            else:
                self._casts[key] = as_constant(rounded_constant(value, self.dtype, layout), self.dtype)
        return self._casts[key]


def _is_int8(node: relay.Expr) -> bool:
    type_ = node.checked_type
    return isinstance(type_, relay.TensorType) and type_.dtype == INT8


def _layout_of_weights(expr: relay.Expr, user: relay.Call) -> str:
    """The layout of constant weights of a convolution or matrix product, such as OIHW; "" for others."""
    name = op_name(user) or ""
    if name not in WEIGHT_LAYOUTS or expr != user.args[1] or not isinstance(expr, relay.Constant):
        return ""
    layout = WEIGHT_LAYOUTS[name] or str(user.attrs.kernel_layout)
    return layout if set(layout) <= set("OIHW") else ""


def _for_one_user(expr: relay.Expr) -> relay.Expr:
    """A copy of a transpose, which TVM fuses with the cast if nothing else reads it."""
    if op_name(expr) in ("transpose", "layout_transform"):
        return relay.Call(expr.op, expr.args, expr.attrs, None, expr.span)
    return expr


def _with_out_dtype(attrs: tvm.ir.Attrs, dtype: str) -> tvm.ir.Attrs:
    """The attributes with another `out_dtype`, if they have one; a convolution that gives int8 keeps it."""
    if isinstance(attrs, tvm.ir.DictAttrs) and "out_dtype" in attrs:
        fields = {str(name): value for name, value in attrs.items()}
        of_float = {"out_dtype": dtype} if fields["out_dtype"] == "float32" else {}
        return tvm.ir.make_node("DictAttrs", **{**fields, **of_float})
    if not getattr(attrs, "out_dtype", None):
        return attrs
    fields = {str(name): value for name, value in dict(attrs).items()}
    return tvm.ir.make_node(f"relay.attrs.{type(attrs).__name__}", **{**fields, "out_dtype": dtype})
