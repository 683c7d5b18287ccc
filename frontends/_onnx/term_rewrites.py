"""Makes values in normal form: each operator of `Terms` applies the rewrites that concern it.

An operator takes values in normal form and gives one. The normal form guarantees:

- Terms of equal operator, arguments and dtype are one object; the rank follows from these. Numbers are
  compared as Python does it: 0.0 and -0.0 are one constant, and a NaN is equal to nothing.
- A value of rank 0 is a term. An array of elements has rank 1 or more, and all its terms have rank 0.
- A constant of up to `MAX_ELEMENTS` elements is one `Const` term for each element.
- What is computed element by element from scalars and arrays of elements is a term for each element.
- No operator of `FOLDED` has only constants as arguments, integer `Div` apart.
- Axes are counted from 0.

The rewrites, and why each is exact, that is, keeps the shape and all elements at run time:

- Gather, Unsqueeze, Squeeze, Concat, Slice and Reshape of an array of elements: the moved elements. They
  compute nothing, and index as NumPy does. A Reshape whose shape has a 0, which copies a length in ONNX, is
  left.
- Squeeze of an Unsqueeze by the same axes: what both were applied to.
- Slice of several axes: one Slice after the other, as each cuts its own axis.
- Slice by 1 from 0 to `TO_THE_END` or further: its data, as no axis is that long.
- Expand that only puts axes of length 1 in front: Unsqueeze. No other Expand is read.
- Shape: an array of its lengths. A length is a constant where the tensor's type in Relay says so; of
  Unsqueeze, Pad and Full it follows from their arguments; else it is a `Size`.
- ConstantOfShape of a known shape and Range of known bounds: their elements, up to `MAX_ELEMENTS`.
- Cast to the dtype that a value has: the value. Cast of a constant: a constant, as NumPy and ONNX cast alike.
- An operator of `FOLDED` on constants: a constant, computed in their dtype and rounded once, as at run time.
  Integer Div is left: ONNX cuts off the fraction, `truediv` does not.
- Where of scalars by a known condition: the branch that it takes. Nothing is broadcast.
- Equal of a length and a negative number: False, as no length is negative.
- ReduceMax and ReduceMin of an array of elements: `Max` and `Min` of the elements.

The leaves are `Const`; `Tensor`, which `term_reader.py` makes; and `Round` and `Carried`, which `loops.py`
makes. The other terms have the names of ONNX's operators, except `Size`; `Full`, a ConstantOfShape; `Array`,
an array of elements as one tensor; `AtLeast`, a Clip by a lower bound; and `Max` and `Min` of scalars.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tvm_passes.analysis.elements import array_of

from .terms import (
    NotRead,
    Term,
    Value,
    axis_from_front,
    elements_of,
    known_numbers,
    numbers_of,
    scalar_as_term,
)

MAX_ELEMENTS = 64  # of a constant whose elements are kept apart
TO_THE_END = np.iinfo("int32").max  # exporters write this or more for the end of an axis
FOLDED = {
    "Add": operator.add,
    "Div": operator.truediv,
    "Equal": operator.eq,
    "Mul": operator.mul,
    "Sub": operator.sub,
}


class Terms:
    """Makes all terms that are to be compared with each other, and applies operators to values."""

    def __init__(self) -> None:
        self._made: dict[Any, Term] = {}
        self._known_sizes: dict[Term, tuple[int | None, ...]] = {}

    def __call__(self, op: str, *args: Any, rank: int, dtype: str) -> Term:
        """The term as it stands, without any rewrite."""
        return self._made.setdefault((op, args, dtype), Term(op, args, rank, dtype))

    def const(self, value: Any, dtype: str = "int64") -> Value:
        """A number, or an array of them."""
        values = np.asarray(value, dtype)
        elements = [self("Const", element.item(), rank=0, dtype=dtype) for element in values.ravel()]
        return scalar_as_term(array_of(elements, values.shape))

    def vector(self, *elements: Term) -> np.ndarray:
        return array_of(list(elements), (len(elements),))

    def whole(self, value: Value | None) -> Term:
        """The value as one term; an empty array has no element to take its dtype from."""
        if isinstance(value, Term):
            return value
        if value is None or not value.size:
            raise NotRead
        dtype = value.flat[0].dtype
        return self("Array", value.shape, *value.flat, rank=value.ndim, dtype=dtype)

    # --- lengths

    def know_sizes(self, term: Term, known: tuple[int | None, ...]) -> None:
        """Tell what the type of a term has of its lengths, with None for those that it does not have."""
        self._known_sizes.setdefault(term, known)

    def size(self, term: Term, axis: int) -> Value:
        """The length of a term along an axis, which is counted from 0."""
        known = self._known_sizes.get(term)
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

    # --- moving elements

    def gather(self, data: Value, indices: Value, axis: int = 0) -> Value:
        numbers = numbers_of(indices)
        if isinstance(data, np.ndarray):
            if numbers is None:
                raise NotRead
            return scalar_as_term(np.take(data, numbers, axis))
        indices = self.whole(indices)
        rank = data.rank - 1 + indices.rank
        return self("Gather", data, axis_from_front(axis, data.rank), indices, rank=rank, dtype=data.dtype)

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        elements = elements_of(value)
        if elements is not None:
            return np.expand_dims(elements, tuple(axes))
        rank = value.rank + len(axes)
        added = tuple(sorted(axis_from_front(axis, rank) for axis in axes))
        return self("Unsqueeze", value, added, rank=rank, dtype=value.dtype)

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        if isinstance(value, np.ndarray):
            return scalar_as_term(np.squeeze(value, tuple(axes)))
        removed = tuple(sorted(axis_from_front(axis, value.rank) for axis in axes))
        if value.op == "Unsqueeze" and value.args[1] == removed:
            return value.args[0]
        return self("Squeeze", value, removed, rank=value.rank - len(removed), dtype=value.dtype)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        if all(isinstance(value, np.ndarray) for value in values):
            return np.concatenate(values, axis)
        terms = [self.whole(value) for value in values]
        rank, dtype = terms[0].rank, terms[0].dtype
        return self("Concat", axis_from_front(axis, rank), *terms, rank=rank, dtype=dtype)

    def reshape(self, value: Value, shape: Value, allowzero: int = 0) -> Value:
        elements, numbers = elements_of(value), numbers_of(shape)
        if elements is not None and numbers is not None and (numbers != 0).all():
            return scalar_as_term(elements.reshape(numbers))
        if not isinstance(shape, np.ndarray):
            raise NotRead
        term = self.whole(value)
        return self("Reshape", term, allowzero, *shape, rank=len(shape), dtype=term.dtype)

    def expand(self, value: Value, shape: np.ndarray) -> Value:
        """To its own shape with axes of length 1 in front; no other Expand is read."""
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
        axis_of_each = range(count) if axes is None else known_numbers(axes)
        step_of_each = [1] * count if steps is None else known_numbers(steps)
        if isinstance(value, np.ndarray):
            cuts = [slice(None)] * value.ndim
            for axis, *bounds in zip(axis_of_each, known_numbers(starts), known_numbers(ends), step_of_each):
                cuts[axis] = slice(*map(int, bounds))
            return value[tuple(cuts)]
        for axis, start, end, step in zip(axis_of_each, starts, ends, step_of_each):
            if (start.number, step) == (0, 1) and end.number is not None and end.number >= TO_THE_END:
                continue
            axis = axis_from_front(axis, value.rank)
            value = self("Slice", value, axis, start, end, int(step), rank=value.rank, dtype=value.dtype)
        return value

    def pad(self, value: Term, pads: Iterable[int], fill: float) -> Term:
        """By a constant; `pads` has what is added in front of each axis, then behind each."""
        return self("Pad", value, tuple(map(int, pads)), float(fill), rank=value.rank, dtype=value.dtype)

    # --- making and computing elements

    def full(self, shape: np.ndarray, fill: float, dtype: str) -> Value:
        numbers = numbers_of(shape)
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
            return array_of([self.cast(element, dtype) for element in value.flat], value.shape)
        if value.dtype == dtype:
            return value
        if value.number is not None:
            return self.const(np.asarray(value.number, value.dtype).astype(dtype), dtype)
        return self("Cast", value, rank=value.rank, dtype=dtype)

    def elementwise(self, op: str, *values: Value) -> Value:
        """An operator that broadcasts; on single elements, where those of all values are known apart."""
        arrays = [array for array in map(elements_of, values) if array is not None]
        if len(arrays) < len(values):
            return self._applied(op, *map(self.whole, values))
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        columns = (np.broadcast_to(array, shape).ravel() for array in arrays)
        return scalar_as_term(array_of([self._applied(op, *row) for row in zip(*columns)], shape))

    def _applied(self, op: str, *terms: Term) -> Value:
        numbers = [term.number for term in terms]
        dtype = "bool" if op == "Equal" else terms[-1].dtype
        rank = max(term.rank for term in terms)
        if op == "Where" and numbers[0] is not None and rank == 0:
            return terms[1 if numbers[0] else 2]
        if op == "Equal" and terms[0].op == "Size" and numbers[1] is not None and numbers[1] < 0:
            return self.const(False, "bool")
        is_integer_division = op == "Div" and "int" in dtype
        if op in FOLDED and None not in numbers and not is_integer_division:
            typed = (np.asarray(number, term.dtype) for number, term in zip(numbers, terms))
            return self.const(FOLDED[op](*typed), dtype)
        return self(op, *terms, rank=rank, dtype=dtype)

    def reduce(self, op: str, vector: Value) -> Term:
        """All elements of an array of rank 1 to one, by `Max` or `Min`."""
        if not isinstance(vector, np.ndarray) or vector.ndim != 1 or not vector.size:
            raise NotRead
        return self(op, *vector, rank=0, dtype=vector[0].dtype)

    def argmax(self, value: Term, axis: int) -> Term:
        """The first of the largest."""
        return self("ArgMax", value, axis_from_front(axis, value.rank), rank=value.rank - 1, dtype="int64")

    def resize(self, value: Term, lengths: np.ndarray, mode: str) -> Term:
        """To these lengths, of half-pixel coordinates; `cubic` is with PyTorch's coefficient, -0.75."""
        return self("Resize", value, mode, *lengths, rank=value.rank, dtype=value.dtype)
