"""Convert the convolutions of a float32 network, and what is between them, to half precision."""

from __future__ import annotations

import math

import numpy as np

from topi_ext.group_norm.op import NAME as GROUP_NORM
from topi_ext.layer_norm.op import NAME as LAYER_NORM
from topi_ext.roi_align.op import NAME as MULTISCALE_ROI_ALIGN

import tvm
from tvm import relax
from tvm.ir import Expr

from ..analysis.half_precision import MAX_WINDOW, RANGES, ChosenForHalf, holds, holds_each
from ..convolution.fused_call import FusedCall
from ..convolution.rounding import rounded_constant
from ..engine.report import PassReport, publish
from .graph import Graph, bounds_of, dtype_of, op_name, tensors_of
from .rule_pass import tidied
from .take_in import CONVOLUTION
from .take_in_activations import ACTIVATIONS

# Sums of products, of half precision in float32.
PRODUCTS = {
    "relax.matmul",
    *(f"relax.nn.conv{rank}d{transposed}" for rank in (1, 2, 3) for transposed in ("", "_transpose")),
}
NORMS = GROUP_NORM, LAYER_NORM  # which compute in float32, and whose gamma and beta stay float32
EPILOGUES = {"relax.add", "relax.clip", "relax.nn.relu", "relax.nn.leakyrelu"}
FOLLOW = {
    *EPILOGUES,
    *ACTIVATIONS,
    *(f"relax.{name}" for name in ("subtract", "multiply", "divide", "maximum", "minimum", "negative")),
    *(f"relax.{name}" for name in ("reshape", "permute_dims", "expand_dims", "squeeze", "flatten")),
    *(f"relax.{name}" for name in ("concat", "split", "stack", "strided_slice", "broadcast_to", "take")),
    *(f"relax.{name}" for name in ("nn.max_pool2d", "nn.avg_pool2d", "image.resize2d")),
    MULTISCALE_ROI_ALIGN,
    *NORMS,
}


class _Half(ChosenForHalf):
    """Which values of a function to convert to half precision, and what they become."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.graph, self.dtype = graph, dtype
        nodes = list(dict.fromkeys(value for _, value in graph.bindings))
        self.why_not = {node: self._why_not_half(node) for node in nodes if self._gains(node)}
        followers = [node for node in nodes if self._follows(node) and self._why_not_half(node) is None]
        super().__init__([node for node, reason in self.why_not.items() if reason is None], followers)
        self._as_half: dict[Expr, relax.Var] = {}  # by a value in float32
        self._bindings: list[relax.Binding] = []
        self._builder = relax.BlockBuilder()

    def rebuilt(self, function: relax.Function) -> relax.Function:
        """The function with the chosen values in half precision, each cast to float32 for others."""
        blocks = []
        for block in function.body.blocks:
            self._bindings = []
            for binding in block.bindings:
                if isinstance(binding, relax.VarBinding) and binding.value in self.chosen:
                    self._bind(binding.var, binding.value)
                else:
                    self._bindings.append(binding)
            blocks.append(type(block)(self._bindings))
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def data_of(self, node: Expr) -> list[Expr]:
        return [self.graph.value(each) for each in self._operands(node)]

    def users(self, node: Expr) -> list[Expr]:
        users: list[Expr] = []
        for user in self.graph.users(node):
            users += self.graph.users(user) if isinstance(user, relax.Tuple) else [user]
        return users

    def is_epilogue(self, node: Expr) -> bool:
        return op_name(node) in EPILOGUES

    def is_field(self, node: Expr) -> bool:
        return isinstance(node, relax.TupleGetItem)

    def _operands(self, node: Expr) -> list[Expr]:
        """The operands that would be in half precision, as they are written."""
        if isinstance(node, relax.TupleGetItem):
            return [node.tuple_value]
        if not op_name(node):
            return []
        if op_name(node) == CONVOLUTION:
            data, weight, _bias, residual, *_of_filters = node.args
            return [data, weight, *([residual] if node.attrs["has_residual"] else [])]
        if op_name(node) in NORMS:
            return [node.args[0]]
        flat = [field for argument in node.args for field in self._fields(argument)]
        return flat[:-1] if op_name(node) == MULTISCALE_ROI_ALIGN else flat

    def _fields(self, argument: Expr) -> list[Expr]:
        value = self.graph.value(argument)
        if isinstance(value, relax.Tuple):
            return [field for each in value.fields for field in self._fields(each)]
        return [argument] if dtype_of(argument) == "float32" else []

    def _gains(self, node: Expr) -> bool:
        if op_name(node) == CONVOLUTION:
            return dtype_of(node.args[0]) == "float32" and not str(node.attrs["out_dtype"])
        operands = tensors_of(node) if op_name(node) in PRODUCTS else []
        return bool(operands) and {dtype_of(each) for each in (node, *operands)} == {"float32"}

    def _follows(self, node: Expr) -> bool:
        if isinstance(node, relax.TupleGetItem):
            return _is_float32(node) and self._follows(self.graph.value(node.tuple_value))
        if op_name(node) == MULTISCALE_ROI_ALIGN and self.dtype != "float16":
            return False
        return op_name(node) in FOLLOW and _is_float32(node)

    def _why_not_half(self, node: Expr) -> str | None:
        """Why its attributes or constants keep a value from half precision, or None."""
        name = op_name(node)
        if name == "relax.divide" and self.graph.constant(node.args[1]) is None:
            return f"stays float32: in {self.dtype} the divisor may become 0"
        if name == "relax.nn.avg_pool2d" and math.prod(map(int, node.attrs.pool_size)) > MAX_WINDOW:
            return f"stays float32: it sums more than {MAX_WINDOW} pixels"
        if name == "relax.image.resize2d" and node.attrs.out_dtype:
            return "stays float32: its out_dtype attribute says so"
        constants = [self.graph.constant(each) for each in self._operands(node)]
        if name == "relax.clip":
            constants += map(np.asarray, bounds_of(node))
        # 0 in place of a small bound or divisor may make what is computed of it infinite.
        is_held = holds_each if name in ("relax.clip", "relax.divide") else holds
        if not all(is_held(self.dtype, each) for each in constants):
            return f"stays float32: a constant is out of the range of {self.dtype}"
        return None

    def _bind(self, variable: relax.Var, value: Expr) -> None:
        """Bind a chosen value in half precision, and a variable to what it is in float32."""
        if value not in self._as_half:
            result = self._rewritten(value)
            if op_name(value) in PRODUCTS:  # whose sums are float32
                self._bindings.append(relax.VarBinding(variable, result))
                self._as_half[value] = self._bound(relax.op.astype(variable, self.dtype), variable)
                return
            self._as_half[value] = self._bound(result, variable)
        self._bindings.append(relax.VarBinding(variable, _in_float32(self._as_half[value])))

    def _rewritten(self, value: Expr) -> Expr:
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._as_half[self.graph.value(value.tuple_value)], value.index)
        if op_name(value) == CONVOLUTION:
            call = FusedCall(value)
            call.data, call.weight = self._cast(call.data), self._cast(call.weight, "OHWI")
            if call.residual is not None:
                call.residual = self._cast(call.residual)
            return call.call()
        operands = set(self._operands(value))

        def rewritten(argument: Expr, layout: str = "") -> Expr:
            fields = self.graph.value(argument)
            if isinstance(fields, relax.Tuple):
                return relax.Tuple([rewritten(each) for each in fields.fields])
            return self._cast(argument, layout) if argument in operands else argument

        first, *others = value.args
        arguments = [rewritten(first), *(rewritten(each, _layout_of_weights(value)) for each in others)]
        return relax.Call(value.op, arguments, _summing_in_float32(value))

    def _cast(self, operand: Expr, layout: str = "") -> Expr:
        """An operand in half precision; `layout` is that of constant weights, or ""."""
        array, value = self.graph.constant(operand), self.graph.value(operand)
        if array is not None:
            return relax.const(np.ascontiguousarray(rounded_constant(array, self.dtype, layout)), self.dtype)
        if value not in self._as_half:
            self._as_half[value] = self._bound(relax.op.astype(operand, self.dtype), operand)
        return self._as_half[value]

    def _bound(self, value: Expr, like: relax.Var) -> relax.Var:
        """A new variable for a value."""
        value = self._builder.normalize(value)
        variable = relax.Var(f"{like.name}_{self.dtype}", value.ty)
        self._bindings.append(relax.VarBinding(variable, value))
        return variable


def _is_float32(value: Expr) -> bool:
    """Whether a tensor, or each of a tuple, is float32."""
    types = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
    return all(isinstance(each, relax.TensorType) and str(each.dtype.dtype) == "float32" for each in types)


def _in_float32(variable: relax.Var) -> Expr:
    if not isinstance(variable.ty, relax.TupleType):
        return relax.op.astype(variable, "float32")
    fields = (relax.TupleGetItem(variable, at) for at in range(len(variable.ty.fields)))
    return relax.Tuple([relax.op.astype(field, "float32") for field in fields])


def _layout_of_weights(call: Expr) -> str:
    """The layout of the weights of a convolution of images, or product of matrices, such as OIHW; or ""."""
    if op_name(call) == "relax.matmul":
        return "IO" if call.args[1].ty.ndim == 2 else ""
    layout = str(call.attrs.kernel_layout) if op_name(call) == "relax.nn.conv2d" else ""
    return layout if set(layout) <= set("OIHW") else ""


def _summing_in_float32(call: Expr) -> tvm.ir.Attrs | None:
    """The attributes of a call, with which a sum of products is in float32."""
    if op_name(call) not in PRODUCTS:
        return call.attrs
    kind = type(call.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(call.attrs, field.name) for field in kind.fields}
    return tvm.ir.make_node(kind.type_key, **{**fields, "out_dtype": "float32"})


def InMixedPrecision(dtype: str = "float16") -> tvm.transform.Pass:
    """Compute convolutions and matrix products in half precision, and what lies between them.

    What follows them is chosen as by Relay's `tvm_passes.InMixedPrecision`: scores, box corners, regions, and
    what is computed from the heads of a network, are float32.

    Why legal: it rounds numbers to half precision, as requested, and changes nothing else. The types of
    inputs and results stay. Sums of products are float32, and rounded for those who read half precision.
    Constants are cast here, each to one of its two neighbours in half precision.
    """
    if dtype not in RANGES:
        raise ValueError(f"InMixedPrecision: dtype must be one of {', '.join(RANGES)}, not {dtype!r}")

    @tvm.transform.module_pass(opt_level=0, name="InMixedPrecision")
    def run(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        report = PassReport("InMixedPrecision", ["InMixedPrecision"])
        mod = tidied(mod).clone()
        for name, function in mod.functions.items():
            if isinstance(function, relax.Function):
                graph = Graph(function)
                half = _Half(graph, dtype)
                for value, reason in half.why_not.items():
                    if reason is None:
                        report.rewrote(report.name, graph.location(value))
                    else:
                        report.refused(report.name, graph.location(value), reason)
                mod[name] = half.rebuilt(function)
        publish(report)
        return tidied(mod)

    return run
