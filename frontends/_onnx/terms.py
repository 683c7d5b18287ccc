"""What ONNX nodes compute, as terms: where two terms are the same object, two values are the same.

An exporter spells one computation in many ways: by its version, by the opset, by what it folds. A number goes
into a vector of one, the vector into a shape, the shape through a slice. Here a small tensor is an array of
the numbers in it, so what only moves numbers leaves nothing behind; and what is known is computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_passes.engine.expressions import type_of

from tvm import relay

from .._types import sizes

MAX_ELEMENTS = 64  # of a tensor whose elements are looked at
TO_THE_END = np.iinfo("int32").max  # exporters write this or more
FOLDED = {  # each rounds once, as it would at run time
    "Add": operator.add,
    "Div": operator.truediv,
    "Equal": operator.eq,
    "Mul": operator.mul,
    "Sub": operator.sub,
}
CAST_TO = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}


class NotRead(Exception):
    """Nothing is known of what a node computes."""


@dataclass(frozen=True, eq=False)
class Term:
    """An operator and what it is applied to: terms, and whatever else says what it computes."""

    op: str
    args: tuple[Any, ...]
    rank: int
    dtype: str

    @property
    def number(self) -> Any:
        """The number that it is, or None."""
        return self.args[0] if self.op == "Const" else None


Value = Any  # a `Term`, or an array of terms of rank 0


class Terms:
    """Makes terms, and applies operators to values: terms, and arrays of terms of rank 0."""

    def __init__(self) -> None:
        self._made: dict[Any, Term] = {}
        self._sizes: dict[Term, tuple[int | None, ...]] = {}

    def __call__(self, op: str, *args: Any, rank: int, dtype: str) -> Term:
        return self._made.setdefault((op, args, dtype), Term(op, args, rank, dtype))

    def const(self, value: Any, dtype: str = "int64") -> Value:
        """A number, or an array of them."""
        values = np.asarray(value, dtype)
        elements = [self("Const", element.item(), rank=0, dtype=dtype) for element in values.ravel()]
        return _settled(_array(elements, values.shape))

    def whole(self, value: Value | None) -> Term:
        """The value as one term."""
        if isinstance(value, Term):
            return value
        if value is None or not value.size:
            raise NotRead
        dtype = value.flat[0].dtype
        return self("Array", value.shape, *value.flat, rank=value.ndim, dtype=dtype)

    def vector(self, *numbers: Term) -> np.ndarray:
        return _array(list(numbers), (len(numbers),))

    # --- shapes

    def know_sizes(self, term: Term, known: tuple[int | None, ...]) -> None:
        """Where the sizes of a term are known otherwise: a tuple of int and None."""
        self._sizes.setdefault(term, known)

    def size(self, term: Term, axis: int) -> Value:
        """The length of a term along an axis."""
        known = self._sizes.get(term)
        if known and known[axis] is not None:
            return self.const(known[axis])
        if term.op == "Unsqueeze":
            data, axes = term.args
            return self.const(1) if axis in axes else self.size(data, axis - sum(a < axis for a in axes))
        if term.op == "Pad":
            data, pads, _ = term.args
            return self.elementwise("Add", self.size(data, axis), self.const(sum(pads[axis :: data.rank])))
        if term.op == "Full":
            return term.args[1 + axis]
        return self("Size", term, axis, rank=0, dtype="int64")

    def shape(self, value: Value) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return self.const(value.shape)
        return self.vector(*(self.size(value, axis) for axis in range(value.rank)))

    # --- places

    def gather(self, data: Value, indices: Value, axis: int = 0) -> Value:
        numbers = _numbers(indices)
        if isinstance(data, np.ndarray):
            if numbers is None:
                raise NotRead
            return _settled(np.take(data, numbers, axis))
        indices = self.whole(indices)
        rank = data.rank - 1 + indices.rank
        return self("Gather", data, _place(axis, data.rank), indices, rank=rank, dtype=data.dtype)

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        items = _items(value)
        if items is not None:
            return np.expand_dims(items, tuple(axes))
        axes = tuple(sorted(_place(axis, value.rank + len(axes)) for axis in axes))
        return self("Unsqueeze", value, axes, rank=value.rank + len(axes), dtype=value.dtype)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        if isinstance(value, np.ndarray):
            return _settled(np.squeeze(value, tuple(axes)))
        axes = tuple(sorted(_place(axis, value.rank) for axis in axes))
        if value.op == "Unsqueeze" and value.args[1] == axes:
            return value.args[0]
        return self("Squeeze", value, axes, rank=value.rank - len(axes), dtype=value.dtype)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        if all(isinstance(value, np.ndarray) for value in values):
            return np.concatenate(values, axis)
        terms = [self.whole(value) for value in values]
        return self("Concat", _place(axis, terms[0].rank), *terms, rank=terms[0].rank, dtype=terms[0].dtype)

    def reshape(self, value: Value, shape: Value, allowzero: int = 0) -> Value:
        items, numbers = _items(value), _numbers(shape)
        if items is not None and numbers is not None and (numbers != 0).all():
            return _settled(items.reshape(numbers))
        if not isinstance(shape, np.ndarray):
            raise NotRead
        term = self.whole(value)
        return self("Reshape", term, allowzero, *shape, rank=len(shape), dtype=term.dtype)

    def expand(self, value: Value, shape: np.ndarray) -> Value:
        """Only that which adds axes of length 1 in front."""
        term = self.whole(value)
        added = len(shape) - term.rank
        if added < 1 or list(shape) != [*self.const([1] * added), *self.shape(term)]:
            raise NotRead
        return self.unsqueeze(term, range(added))

    def slice(
        self,
        value: Value,
        starts: np.ndarray,
        ends: np.ndarray,
        axes: np.ndarray | None = None,
        steps: np.ndarray | None = None,
    ) -> Value:
        count = len(starts)
        places = range(count) if axes is None else _known_numbers(axes)
        strides = [1] * count if steps is None else _known_numbers(steps)
        if isinstance(value, np.ndarray):
            cuts = [slice(None)] * value.ndim
            for axis, *bounds in zip(places, _known_numbers(starts), _known_numbers(ends), strides):
                cuts[axis] = slice(*map(int, bounds))
            return value[tuple(cuts)]
        for axis, start, end, step in zip(places, starts, ends, strides):
            if (start.number, step) == (0, 1) and end.number is not None and end.number >= TO_THE_END:
                continue
            axis = _place(axis, value.rank)
            value = self("Slice", value, axis, start, end, int(step), rank=value.rank, dtype=value.dtype)
        return value

    def pad(self, value: Term, pads: Iterable[int], fill: float) -> Term:
        return self("Pad", value, tuple(map(int, pads)), float(fill), rank=value.rank, dtype=value.dtype)

    def resize(self, value: Term, lengths: np.ndarray, mode: str) -> Term:
        """With pixels of half a pixel from the border, and cubic as torch has it."""
        return self("Resize", value, mode, *lengths, rank=value.rank, dtype=value.dtype)

    # --- numbers

    def full(self, shape: np.ndarray, fill: float, dtype: str) -> Value:
        numbers = _numbers(shape)
        if numbers is not None and numbers.prod() <= MAX_ELEMENTS:
            return self.const(np.full(numbers, fill), dtype)
        return self("Full", fill, *shape, rank=len(shape), dtype=dtype)

    def range(self, start: Term, limit: Term, delta: Term) -> Value:
        bounds = [bound.number for bound in (start, limit, delta)]
        if None not in bounds and len(range(*bounds)) <= MAX_ELEMENTS:
            return self.const(range(*bounds), start.dtype)
        return self("Range", start, limit, delta, rank=1, dtype=start.dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        if isinstance(value, np.ndarray):
            return _array([self.cast(element, dtype) for element in value.flat], value.shape)
        if value.dtype == dtype:
            return value
        if value.number is not None:
            return self.const(np.asarray(value.number, value.dtype).astype(dtype), dtype)
        return self("Cast", value, rank=value.rank, dtype=dtype)

    def elementwise(self, op: str, *values: Value) -> Value:
        items = [item for item in map(_items, values) if item is not None]
        if len(items) < len(values):
            return self._applied(op, *map(self.whole, values))
        shape = np.broadcast_shapes(*(item.shape for item in items))
        columns = (np.broadcast_to(item, shape).ravel() for item in items)
        return _settled(_array([self._applied(op, *row) for row in zip(*columns)], shape))

    def _applied(self, op: str, *terms: Term) -> Value:
        numbers = [term.number for term in terms]
        dtype = "bool" if op == "Equal" else terms[-1].dtype
        rank = max(term.rank for term in terms)
        if op == "Where" and numbers[0] is not None and rank == 0:
            return terms[1 if numbers[0] else 2]
        if op == "Equal" and terms[0].op == "Size" and numbers[1] is not None and numbers[1] < 0:
            return self.const(False, "bool")
        is_whole_division = op == "Div" and "int" in dtype  # which rounds in another way
        if op in FOLDED and None not in numbers and not is_whole_division:
            return self.const(
                FOLDED[op](*(np.asarray(n, term.dtype) for n, term in zip(numbers, terms))), dtype
            )
        return self(op, *terms, rank=rank, dtype=dtype)

    def reduce(self, op: str, vector: Value) -> Term:
        """All elements of a vector to one."""
        if not isinstance(vector, np.ndarray) or vector.ndim != 1 or not vector.size:
            raise NotRead
        return self(op, *vector, rank=0, dtype=vector[0].dtype)

    def argmax(self, value: Term, axis: int) -> Term:
        return self("ArgMax", value, _place(axis, value.rank), rank=value.rank - 1, dtype="int64")


class Reader:
    """Reads the nodes of a graph that is being imported, and those of a graph inside one of its nodes.

    `imported` gives what a name is in Relay already, or None: constants and types are read from there.
    """

    def __init__(self, graph: onnx.GraphProto, imported: Callable[[str | None], relay.Expr | None]) -> None:
        self.terms = Terms()
        self.name_of: dict[Term, str] = {}  # a term from outside; the first name, where there are several
        self._imported = imported
        self._producers = {output: node for node in graph.node for output in node.output}
        self._outside: dict[str, Value] = {}
        self._inside: dict[str, Value] = {}

    def read_inside(self, graph: onnx.GraphProto, inputs: list[Value]) -> list[Value]:
        """The values of the outputs of an inner graph for these inputs."""
        self._inside = dict(zip((value.name for value in graph.input), inputs))
        for tensor in graph.initializer:
            self._inside[tensor.name] = self.terms.const(*_array_of(tensor))
        for node in graph.node:
            self._inside[node.output[0]] = self._computed(node, self.value)
        return [self.value(output.name) for output in graph.output]

    def value(self, name: str) -> Value:
        return self._inside[name] if name in self._inside else self._outer_value(name)

    def _outer_value(self, name: str) -> Value:
        waiting = [name]
        while waiting:  # no recursion: what is outside may be as deep as the network
            last = waiting[-1]
            more = [] if last in self._outside else self._unread_inputs(last)
            if not more:
                self._read_outside(waiting.pop())
            waiting.extend(more)
        return self._outside[name]

    def _unread_inputs(self, name: str) -> list[str]:
        node = self._producers.get(name)
        if node is None or node.op_type not in _RULES or self._is_constant(name):
            return []
        return [other for other in node.input if other and other not in self._outside]

    def _is_constant(self, name: str) -> bool:
        return isinstance(self._imported(name), relay.Constant)

    def _read_outside(self, name: str) -> None:
        if name in self._outside:
            return
        expr = self._imported(name)
        type_ = None if expr is None else type_of(expr)
        if not isinstance(type_, relay.TensorType):
            raise NotRead
        value = self._constant_or_none(name, type_)
        node = self._producers.get(name)
        if value is None and node is not None:
            try:
                value = self._computed(node, self._outer_value)
            except NotRead:
                value = None
        if value is None:
            value = self.terms("Tensor", name, rank=len(type_.shape), dtype=type_.dtype)
        if isinstance(value, Term):
            self.terms.know_sizes(value, sizes(type_))
            self.name_of.setdefault(value, name)
        self._outside[name] = value

    def _constant_or_none(self, name: str, type_: relay.TensorType) -> Value | None:
        expr = self._imported(name)
        if not isinstance(expr, relay.Constant) or math.prod(expr.data.shape) > MAX_ELEMENTS:
            return None
        return self.terms.const(expr.data.numpy(), type_.dtype)

    def _computed(self, node: onnx.NodeProto, value_of: Callable[[str], Value]) -> Value:
        rule = _RULES.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            raise NotRead
        attrs = {attr.name: onnx.helper.get_attribute_value(attr) for attr in node.attribute}
        inputs = [value_of(name) if name else None for name in node.input]
        try:
            return rule(self.terms, inputs, attrs)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise NotRead from error


# --- the operators of ONNX


def _constant(terms: Terms, _inputs: list[Any], attrs: dict[str, Any]) -> Value:
    ((name, value),) = attrs.items()
    if name == "value":
        return terms.const(*_array_of(value))
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise NotRead
    return terms.const(value, "float32" if "float" in name else "int64")


def _unsqueeze(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.unsqueeze(inputs[0], _axes(inputs, attrs))


def _squeeze(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.squeeze(inputs[0], _axes(inputs, attrs))


def _axes(inputs: list[Any], attrs: dict[str, Any]) -> Sequence[int]:
    """Which were an attribute once."""
    if len(inputs) > 1:
        return _known_numbers(inputs[1]).tolist()
    if "axes" not in attrs:
        raise NotRead
    return attrs["axes"]


def _slice(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    data, *bounds = inputs
    if not bounds:
        bounds = [terms.const(attrs[name]) for name in ("starts", "ends", "axes") if name in attrs]
    return terms.slice(data, *bounds)


def _pad(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    data, pads, fill, axes = (inputs + [None] * 3)[:4]
    fill = 0 if fill is None else _known_numbers(fill).item()
    if axes is not None or attrs.get("mode", b"constant") != b"constant":
        raise NotRead
    return terms.pad(terms.whole(data), _known_numbers(pads), fill)


def _resize(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """To given lengths; the attributes that change nothing then are none of these."""
    half_pixel = attrs.get("coordinate_transformation_mode", b"half_pixel") == b"half_pixel"
    others = ("antialias", "axes", "exclude_outside", "keep_aspect_ratio_policy")
    mode = attrs.get("mode", b"nearest").decode()
    is_torchs = mode == "linear" or (mode == "cubic" and attrs.get("cubic_coeff_a", -0.75) == -0.75)
    if not half_pixel or not is_torchs or len(inputs) < 4 or any(attrs.get(name) for name in others):
        raise NotRead
    return terms.resize(terms.whole(inputs[0]), inputs[3], mode)


def _shape(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.shape(inputs[0])[attrs.get("start", 0) : attrs.get("end")]


def _constant_of_shape(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    value, dtype = _array_of(attrs["value"]) if "value" in attrs else (np.zeros(1), "float32")
    return terms.full(inputs[0], value.item(), dtype)


def _cast(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    return terms.cast(inputs[0], CAST_TO[attrs["to"]])


def _reduce(op: str) -> Callable[..., Value]:
    def rule(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
        axes = _axes(inputs, attrs) if len(inputs) > 1 or "axes" in attrs else [0]
        if attrs.get("keepdims", 1) or attrs.get("noop_with_empty_axes") or list(axes) not in ([0], [-1]):
            raise NotRead
        return terms.reduce(op, inputs[0])

    return rule


def _argmax(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    if attrs.get("keepdims", 1) or attrs.get("select_last_index"):
        raise NotRead
    return terms.argmax(terms.whole(inputs[0]), attrs.get("axis", 0))


def _mod(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    if attrs.get("fmod"):
        raise NotRead
    return terms.elementwise("Mod", *inputs)


def _clip(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
    """With a lower bound alone."""
    data, least, most = (inputs + [None] * 2)[:3]
    if "min" in attrs:
        least = terms.const(attrs["min"], terms.whole(data).dtype)
    if least is None or most is not None or "max" in attrs:
        raise NotRead
    return terms.elementwise("AtLeast", data, least)


def _elementwise(op: str) -> Callable[..., Value]:
    def rule(terms: Terms, inputs: list[Any], attrs: dict[str, Any]) -> Value:
        if attrs:  # of opsets up to 6, where they say what is broadcast
            raise NotRead
        return terms.elementwise(op, *inputs)

    return rule


_RULES: dict[str, Callable] = {
    "ArgMax": _argmax,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda terms, inputs, attrs: terms.concat(inputs, attrs["axis"]),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Expand": lambda terms, inputs, _: terms.expand(*inputs),
    "Gather": lambda terms, inputs, attrs: terms.gather(*inputs, attrs.get("axis", 0)),
    "Identity": lambda terms, inputs, _: inputs[0],
    "Mod": _mod,
    "Pad": _pad,
    "Range": lambda terms, inputs, _: terms.range(*inputs),
    "ReduceMax": _reduce("Max"),
    "ReduceMin": _reduce("Min"),
    "Reshape": lambda terms, inputs, attrs: terms.reshape(*inputs, attrs.get("allowzero", 0)),
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    **{op: _elementwise(op) for op in ("Add", "Ceil", "Div", "Equal", "Mul", "Sub", "Where")},
}


# --- arrays and axes


def _place(axis: int, rank: int) -> int:
    """An axis, counted from the first."""
    if not -rank <= axis < rank:
        raise NotRead
    return int(axis) % rank


def _array(elements: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(len(elements), object)
    result[:] = elements
    return result.reshape(shape)


def _array_of(tensor: onnx.TensorProto) -> tuple[np.ndarray, str]:
    """A small tensor as an array, and its type."""
    if np.prod(tensor.dims, dtype="int64") > MAX_ELEMENTS:
        raise NotRead
    values = numpy_helper.to_array(tensor)
    return values, str(values.dtype)


def _settled(array: Value) -> Value:
    """A number is a term, not an array of no axes."""
    return array if isinstance(array, Term) or array.ndim else array.item()


def _items(value: Value | None) -> np.ndarray | None:
    """The numbers in a value, or None where they are not told apart."""
    if isinstance(value, np.ndarray):
        return value
    if value is None:  # an input that is not there
        raise NotRead
    return np.array(value, object) if value.rank == 0 else None


def _numbers(value: Value) -> np.ndarray | None:
    """The array of what a value is, or None."""
    items = _items(value)
    if items is None:
        return None
    numbers = [item.number for item in items.flat]
    return None if None in numbers else np.array(numbers).reshape(items.shape)


def _known_numbers(value: Value) -> np.ndarray:
    numbers = _numbers(value)
    if numbers is None:
        raise NotRead
    return numbers
