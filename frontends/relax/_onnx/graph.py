"""Walks over an ONNX graph whose sizes are known: what is constant is computed, the rest becomes Relax.

Since all sizes are known, so is whatever ONNX computes from them: nodes whose inputs are known are computed
by ONNX's own reference, branches are taken and loops unrolled at import. Only operators are converted
that are compared with ONNX Runtime; all others are refused.

Where data decide how many rows a tensor has, it has as many as there can be: see `rows.py` for what is known
of them, `selections.py` for nodes that make and read them, and `counts.py` for shapes with their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import topi_ext

from tvm import relax

from ..._onnx.by_others import definition, is_defined_by_others
from ..._onnx.describe import describe
from ..._onnx.imported import Imported
from ..._onnx.interface import ELEMENT_TYPES
from ..._onnx.loops import PastedMasks, known_loop
from ..._onnx.schema import Known, may_be_a_shape, other_type
from ...errors import NO_REASON, ImportFailure, gist
from . import counts, elementwise, layers, quantization, reductions, sampling, selections, shapes
from .counts import Count, IsNone, extents, has_counts, is_symbolic
from .node import Convert, Node, Value, constant, dtype_of, shape_of
from .rows import Rows, rows_of_result
from .sizes import INSTEAD, SizesMatter, SizeUnknown, expressions, of_what_is_known, sizes_array

TO_RELAY = "import it by frontends.from_onnx, to Relay"
MAX_NODES = 20_000  # after loops are unrolled
CONVERTERS: dict[str, Convert] = {
    **elementwise.converters(),
    **layers.converters(),
    **quantization.converters(),
    **reductions.converters(),
    **sampling.converters(),
    **shapes.converters(),
}
EACH_ELEMENT = {*elementwise.converters()}
OF_WINDOWS = {"AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool", "Resize", "Upsample"}
# Of what is known at import; these have no converter, since their results have the shapes that data gives.
ONLY_KNOWN = {
    *("Compress", "NonZero", "Unique"),
}
# These are never computed at import: they are of weights at most, and take ONNX's reference long.
NEVER_KNOWN = {*layers.converters(), *sampling.converters()}
# Where a node may read sizes that only the run knows.
TAKE_SIZES = selections.SHAPES | {("Pad", 1), ("Resize", 3), ("Slice", 1), ("Tile", 1)}
SUMMING = {*layers.converters(), *reductions.converters(), *sampling.converters()} - {
    *("Conv", "ConvTranspose", "DeformConv", "Gemm", "MatMul"),  # which sum in float32 by themselves
    *("ArgMax", "ArgMin", "MaxPool", "TopK"),
}


DEPENDS = (
    "how often it runs depends on data, and only loops whose length is known can be imported, and those in "
    "which torchvision pastes masks and finds keypoints: export the model without it"
)
op = relax.op


class Graph:
    """The values of an ONNX graph by name."""

    def __init__(self, opset: int, builder: relax.BlockBuilder, on_node: Callable[[], None]) -> None:
        self.opset, self.builder, self.on_node = opset, builder, on_node
        self.values: dict[str, Value] = {}
        self.rows: dict[str, Rows] = {}
        self.selections = selections.Made()
        self.constants: dict[int, tuple[np.ndarray, relax.Expr]] = {}
        self.count = 0

    def convert(self, graph: onnx.GraphProto, is_outermost: bool = True) -> None:
        self.proto = graph
        for tensor in graph.initializer:
            self.set(tensor.name, self._array(tensor, f"the tensor '{tensor.name}'"))
        if graph.sparse_initializer:
            raise ImportFailure("sparse weights are not supported: store them as dense tensors")
        for node in graph.node:
            self._convert(node)
            if is_outermost:
                self.on_node()

    def set(self, name: str, value: Value, rows: Rows | None = None) -> None:
        self.values[name] = value
        self.rows.pop(name, None)  # of an earlier pass through a loop
        if rows is not None:
            self.rows[name] = rows

    def expression(self, value: Value) -> relax.Expr:
        """A constant is one, however many nodes read it."""
        if not isinstance(value, np.ndarray):
            return value
        if id(value) not in self.constants:
            self.constants[id(value)] = value, constant(value)
        return self.constants[id(value)][1]

    def known(self, name: str) -> Known | None:
        value = extents(self.values.get(name))
        if value is None:
            return None
        shape = _known_sizes(value)
        is_shape = isinstance(value, np.ndarray) and may_be_a_shape(value.shape) and not is_symbolic(value)
        return Known(dtype_of(value), tuple(shape), value if is_shape else None)

    def _convert(self, node: onnx.NodeProto) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            raise ImportFailure(f"with its loops unrolled, the model has more than {MAX_NODES} nodes")
        for name in filter(None, node.input):
            if name not in self.values:
                raise ImportFailure(
                    f"{describe(node)} reads '{name}', which is not an input, an initializer or an "
                    "output of an earlier node: the model is not complete"
                )
        is_of_onnx = node.domain in ("", "ai.onnx")
        is_known = is_of_onnx and node.op_type in KNOWN_OPERATORS
        is_of_others = is_of_onnx and node.op_type in quantization.BY_OTHERS
        if not is_known and not is_of_others and not is_defined_by_others(node, self.opset):
            instead = "export the model with other operators"
            if node.op_type.startswith("QLinear"):  # ONNX Runtime's own
                instead = "quantize the model in the format QDQ"
            raise ImportFailure(
                f"there is no converter to Relax for the operator of {describe(node)}: {instead}, "
                f"or {TO_RELAY}"
            )
        try:
            if is_known:
                self._convert_by_kind(node)
            else:
                self._convert_by_others(node)
        except ImportFailure:
            raise
        except SizeUnknown as unknown:
            raise SizesMatter(f"{describe(node)} cannot be converted: {unknown}", unknown) from unknown
        except Exception as error:
            reason = gist(error)
            if reason == NO_REASON:
                given = self._given(node)
                reason = f"it is not supported for {given}" + (f": {INSTEAD}" if "?" in given else "")
            raise ImportFailure(f"{describe(node)} cannot be converted: {reason}") from error

    def _convert_by_others(self, node: onnx.NodeProto) -> None:
        """By what ONNX says that it is of other operators, or what is known here of integers."""
        if node.op_type in quantization.BY_OTHERS:
            others = quantization.BY_OTHERS[node.op_type](node, node.output[0])
        else:
            others = list(definition(node, self.opset, self.known).node)
        for other in others:
            self._convert(other)
        self._check_types(node)

    def _convert_by_kind(self, node: onnx.NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        is_known = all(value is None or isinstance(value, np.ndarray) for value in inputs)
        has_rows = any(name in self.rows for name in node.input)
        is_counting = any(map(is_symbolic, inputs))
        if node.op_type == "Constant":
            self.set(node.output[0], self._constant(node))
        elif node.op_type in CONTROL_FLOW:
            CONTROL_FLOW[node.op_type](self, node)
        elif node.op_type in ("Shape", "Size"):
            self._set_shape(node)
        elif is_known and is_counting and node.op_type in counts.OPERATORS and not has_rows:
            self._count(node, inputs)
        elif is_known and not (is_counting or has_rows) and node.op_type not in NEVER_KNOWN:
            self._compute(node, inputs)
        else:
            self._convert_operator(node)

    def _constant(self, node: onnx.NodeProto) -> np.ndarray:
        (attribute,) = node.attribute
        if attribute.name == "value":
            return self._array(attribute.t, describe(node))
        if attribute.name in ("value_float", "value_floats"):
            return np.asarray(helper.get_attribute_value(attribute), "float32")
        if attribute.name in ("value_int", "value_ints"):
            return np.asarray(helper.get_attribute_value(attribute), "int64")
        raise ImportFailure(f"{describe(node)} has {attribute.name}, which no tensor of Relax can hold")

    def _array(self, tensor: onnx.TensorProto, what: str) -> np.ndarray:
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        if name not in ELEMENT_TYPES:
            raise ImportFailure(f"{what} is of type {name}, which is not supported")
        return numpy_helper.to_array(tensor)

    def _set_shape(self, node: onnx.NodeProto) -> None:
        shape = sizes_array(shape_of(extents(self.values[node.input[0]])))
        rows = self.rows.get(node.input[0])
        if rows is not None:
            shape = shape.astype(object)
            shape[rows.axis] = Count(rows.of)
        if node.op_type == "Size":
            self.set(node.output[0], counts.product(shape))
            return
        bounds = {each.name: each.i for each in node.attribute}
        self.set(node.output[0], shape[bounds.get("start") : bounds.get("end")])

    def _count(self, node: onnx.NodeProto, inputs: list[np.ndarray | None]) -> None:
        """What is computed of numbers of rows."""
        n = Node(node, self.opset, inputs, self.builder, self.expression)
        self.set(node.output[0], counts.computed(n, inputs))

    def _compute(self, node: onnx.NodeProto, inputs: list[np.ndarray | None]) -> None:
        """By ONNX's reference."""
        names = list(dict.fromkeys(filter(None, node.input)))
        given = {name: self.values[name] for name in names}
        outputs = list(filter(None, node.output))
        graph = helper.make_graph(
            [node],
            "known",
            [helper.make_tensor_value_info(name, 0, None) for name in names],
            [helper.make_tensor_value_info(name, 0, None) for name in outputs],
        )
        opset = max(self.opset, quantization.IN_REFERENCE_SINCE.get(node.op_type, 0))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(model).run(outputs, given)
        except Exception:  # which does not know every argument
            if node.op_type not in CONVERTERS:
                raise
            self._convert_operator(node)
            return
        for name, result in zip(outputs, results):
            self.set(name, np.asarray(result))
        self._check_types(node)

    def _convert_operator(self, node: onnx.NodeProto) -> None:
        inputs = [self.values[name] if name else None for name in node.input]
        n = Node(node, self.opset, [extents(value) for value in inputs], self.builder, self.expression)
        for at, value in enumerate(inputs):
            taken = selections.SHAPES if has_counts(value) else TAKE_SIZES
            if is_symbolic(value) and (node.op_type, at) not in taken:
                counts.refuse(n, inputs)
        given = [self.rows.get(name) for name in node.input]
        selecting = selections.Selecting(n, inputs, given, self.selections, lambda: self._results_of(n)[0])
        made = selections.selected(selecting)
        rows = None
        if made is not None:
            results = [each.value for each in made]
        elif any(given) and node.op_type in CONVERTERS:
            rows = rows_of_result(n, inputs, given)
            results = self._results_of(n)
        elif node.op_type in ONLY_KNOWN:
            n.refuse(
                "the shape or the values of its result depend on data, and all shapes must be fixed: export "
                f"the model without it, or {TO_RELAY}"
            )
        else:
            results = self._results_of(n)
        reason = n.unread()
        if not reason and len(results) < len(node.output):
            reason = f"its output {len(results)}, '{node.output[len(results)]}', is not supported"
        if reason:
            n.refuse(reason)
        all_rows = [each.rows for each in made] if made is not None else [rows] * len(results)
        for name, result, each in zip(node.output, results, all_rows):
            if name:
                self.set(name, result, each)
        self._check_types(node)

    def _results_of(self, n: Node) -> list[relax.Expr]:
        """Sums of float16 are float32, and rounded, as in ONNX Runtime."""
        emit, in_float32 = self.builder.emit, n.proto.op_type in SUMMING and n.dtype() == "float16"
        if in_float32:
            n.cast("float16", "float32")
        if n.proto.op_type in EACH_ELEMENT:
            elementwise.check_broadcast(n)
        made = CONVERTERS[n.proto.op_type](n)
        results = [emit(each) for each in (made if isinstance(made, list) else [made])]
        if len(results) == 1 and isinstance(results[0].ty, relax.TupleType):
            results = [emit(relax.TupleGetItem(results[0], at)) for at in range(len(results[0].ty.fields))]
        results = [
            emit(op.reshape(each, known)) if (known := _known_shape(each)) else each for each in results
        ]
        if n.proto.op_type in OF_WINDOWS:
            layers.check_pixels(n, results)
        if in_float32 and dtype_of(results[0]) == "float32":  # others, the moments of a norm, stay so
            results[0] = emit(relax.op.astype(results[0], "float16"))
        return results

    def _check_types(self, node: onnx.NodeProto) -> None:
        different = other_type(node, self.opset, self.known)
        if different:
            raise ImportFailure(f"{describe(node)} cannot be converted: {different}")

    def _given(self, node: onnx.NodeProto) -> str:
        types = [str(self.known(name)) if name else "nothing" for name in node.input]
        attributes = [str(helper.printable_attribute(each)) for each in node.attribute]
        return ", ".join(types) + (" and " + ", ".join(attributes) if attributes else "")

    # --- control flow

    def if_(self, node: onnx.NodeProto) -> None:
        """The branch that is taken."""
        condition = self.values[node.input[0]]
        if has_counts(condition):
            return self._if_some(node, condition.item())
        if not isinstance(condition, np.ndarray):
            raise ImportFailure(
                f"{describe(node)} cannot be converted: its condition depends on data, and only one of its "
                "branches can be imported: export the model without it"
            )
        branches = {each.name: each.g for each in node.attribute}
        branch = branches["then_branch" if condition.item() else "else_branch"]
        for name, (value, rows) in zip(node.output, self._results(branch, {})):
            self.set(name, value, rows)

    def _if_some(self, node: onnx.NodeProto, is_none: IsNone) -> None:
        """The branch for some rows, if that for none has no more of them than this one has then."""
        branches = {each.name: each.g for each in node.attribute}
        nothing, some = (self._results(branches[f"{name}_branch"], {}) for name in ("then", "else"))
        for (value, _), (_, rows) in zip(nothing, some):
            is_empty = isinstance(value, np.ndarray) and not value.size
            if not is_empty or rows is None or not rows.of.descends_from(is_none.of):
                raise ImportFailure(
                    f"{describe(node)} cannot be converted: its condition is that there are no rows, and its "
                    "results are not empty then: export the model without it"
                )
        for name, (value, rows) in zip(node.output, some):
            self.set(name, value, rows)

    def loop(self, node: onnx.NodeProto) -> None:
        """Unrolled: how often it runs must be known, if it is not one over all that a detector finds."""
        trips, condition = (self.values[name] if name else None for name in (*node.input, "", "")[:2])
        if has_counts(trips):
            return self._loop_over_rows(node)
        (body,) = (each.g for each in node.attribute if each.name == "body")
        names = [value.name for value in body.input]
        state = [(self.values[name], self.rows.get(name)) for name in node.input[2:]]
        scanned: list[list[Value]] = [[] for _ in body.output[1 + len(state) :]]
        trip = 0
        while self._goes_on(node, condition) and (trips is None or trip < self._trips(node, trips)):
            go_on = np.asarray(True)
            given = dict(zip(names, [(np.asarray(trip, "int64"), None), (go_on, None), *state]))
            (condition, _), *results = self._results(body, given)
            state, made = results[: len(state)], results[len(state) :]
            for values, (value, rows) in zip(scanned, made):
                if rows is not None:
                    raise ImportFailure(f"{describe(node)} collects rows whose number depends on data")
                values.append(value)
            trip += 1
        if scanned and not trip:
            raise ImportFailure(f"{describe(node)} never runs, and its results have no known shape")
        for name, (value, rows) in zip(
            node.output, [*state, *((self._stacked(each), None) for each in scanned)]
        ):
            if name:
                self.set(name, value, rows)

    def _loop_over_rows(self, node: onnx.NodeProto) -> None:
        found = known_loop(self.proto, node, self._imported)
        if found is None:
            raise ImportFailure(f"{describe(node)} cannot be converted: {DEPENDS}")
        names, size = found[:2], found[2:]
        rows, of_second = map(self.rows.get, names)
        if rows is None or rows.axis != 0 or of_second != rows:
            raise ImportFailure(f"{describe(node)} cannot be converted: its tensors have other rows")
        emit = self.builder.emit
        first, second = (self.expression(self.values[name]) for name in names)
        if isinstance(found, PastedMasks):
            pasted = emit(topi_ext.paste_masks(first, second, *size))
            results = [op.squeeze(pasted, [1])]
        else:
            both = emit(topi_ext.heatmaps_to_keypoints(first, second))
            places, scores = (emit(relax.TupleGetItem(both, at)) for at in (0, 1))
            results = [op.permute_dims(places, [0, 2, 1]), scores]
        for name, result in zip(node.output, results):
            self.set(name, emit(result), rows)

    def _imported(self, name: str | None) -> Imported | None:
        if name is None or name not in self.values:
            return None
        value, rows = self.values[name], self.rows.get(name)
        plain = extents(value)
        shape = _known_sizes(plain)
        if rows is not None:
            shape[rows.axis] = None
        is_known = isinstance(value, np.ndarray) and rows is None and not is_symbolic(value)
        array = (lambda: plain) if is_known else None
        return Imported(name, dtype_of(plain), tuple(shape), array)

    def _goes_on(self, node: onnx.NodeProto, condition: Value | None) -> bool:
        if condition is not None and (not isinstance(condition, np.ndarray) or has_counts(condition)):
            raise ImportFailure(
                f"{describe(node)} cannot be converted: whether it goes on depends on data, and only loops "
                "whose length is known can be imported: export the model without it"
            )
        return condition is None or bool(condition.item())

    def _trips(self, node: onnx.NodeProto, trips: Value) -> int:
        if not isinstance(trips, np.ndarray):
            raise ImportFailure(f"{describe(node)} cannot be converted: {DEPENDS}")
        return int(trips.item())

    def _stacked(self, values: list[Value]) -> Value:
        if all(isinstance(value, np.ndarray) for value in values):
            return np.stack(values)
        rows = [relax.op.expand_dims(self.expression(value), 0) for value in values]
        return self.builder.emit(relax.op.concat(rows, 0))

    def _results(
        self, graph: onnx.GraphProto, given: Mapping[str, tuple[Value, Rows | None]]
    ) -> list[tuple[Value, Rows | None]]:
        """The results of an inner graph, whose names are its own."""
        outside = self.values, self.rows, self.proto
        self.values, self.rows = dict(self.values), dict(self.rows)
        for name, (value, rows) in given.items():
            self.set(name, value, rows)
        self.convert(graph, is_outermost=False)
        found = [(self.values[each.name], self.rows.get(each.name)) for each in graph.output]
        self.values, self.rows, self.proto = outside
        return found


def _known_shape(value: relax.Expr) -> relax.ShapeExpr | None:
    """Its shape, if more is known of it than TVM sees, which compares those that have to be equal."""
    if isinstance(value.ty, relax.TupleType):
        return None
    exprs = expressions(shape_of(value))
    known = [of_what_is_known(expr) for expr in exprs]
    if known == [None] * len(exprs):
        return None
    return relax.ShapeExpr([expr if other is None else other for other, expr in zip(known, exprs)])


def _known_sizes(value: Value) -> list[int | None]:
    return [each if isinstance(each, int) else None for each in shape_of(value)]


CONTROL_FLOW: dict[str, Any] = {"If": Graph.if_, "Loop": Graph.loop}
KNOWN_OPERATORS = {
    *CONVERTERS,
    *ONLY_KNOWN,
    *CONTROL_FLOW,
    *selections.CONVERTERS,
    "Constant",
    "Shape",
    "Size",
}
