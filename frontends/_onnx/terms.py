"""Terms: what the values of an ONNX graph are computed from, as expressions that can be compared.

`loops.py` recognizes a loop by comparing two expressions: what the exported loop computes, and what the
function of torchvision computes that it should be. Exporters write one computation in many ways, which depend
on their version, on the opset and on what they fold: a length becomes a vector of one, the vector is
concatenated to a shape, and a slice takes the length out again. So both expressions are brought to a normal
form.

A term is an operator with its arguments, which are terms and attributes such as an axis. Terms are immutable
and hash-consed: the same expression is made once, so terms are compared by `is`. Two terms that are the same
object stand for equal tensors, whatever the inputs of the model are. The converse does not hold: the normal
form undoes what exporters do, and does not prove equality in general.

A value stands for one output of an ONNX node. It is one of two things:

- a `Term`: a tensor of any rank, as a whole;
- an array of elements: a NumPy array, of rank 1 or more, whose items are terms of rank 0. Small constants and
  shapes are values of this kind, as exporters take them apart and put them together.

There are four modules, each built on those before it:

1. `terms.py`, this one, defines both, and has functions that look into a value.
2. `term_rewrites.py` has `Terms`, which makes values in normal form; its docstring lists the rewrites.
3. `term_nodes.py` has `value_of_node`, which takes a node and the values of its inputs, checks its
   attributes, and makes the value of its output by `Terms`.
4. `term_reader.py` has `Reader`, which goes through the graph around a loop and through the loop's body, and
   hands `loops.py` the value of each name that it asks for.

Each may raise `NotRead`. For a node outside the loop, the reader then takes the output as a leaf, of which
only the name and type are known. For a node of the body, it lets the exception through: that loop is not
recognized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


class NotRead(Exception):
    """No value is known of what a node computes, or of what a tensor is."""


@dataclass(frozen=True, eq=False)  # compared by identity; only `Terms` makes them
class Term:
    """An operator and its arguments: terms, and attributes as plain Python values."""

    op: str
    args: tuple[Any, ...]
    rank: int
    dtype: str

    @property
    def number(self) -> Any:
        """The number that a constant is; None of any other term."""
        return self.args[0] if self.op == "Const" else None


Value = Any  # a `Term`, or an array of elements


# --- arrays of elements


def scalar_as_term(array: Value) -> Value:
    """The value itself, but the one element of an array of rank 0 as a term."""
    return array if isinstance(array, Term) or array.ndim else array.item()


def elements_of(value: Value | None) -> np.ndarray | None:
    """The array of the elements of a value, of rank 0 for a scalar; None if they are not known apart."""
    if isinstance(value, np.ndarray):
        return value
    if value is None:  # an optional input that the node does not have
        raise NotRead
    return np.array(value, object) if value.rank == 0 else None


# --- constants


def numbers_of(value: Value | None) -> np.ndarray | None:
    """The numbers that a value is, or None if it is not a constant."""
    elements = elements_of(value)
    if elements is None:
        return None
    numbers = [element.number for element in elements.flat]
    return None if None in numbers else np.array(numbers).reshape(elements.shape)


def known_numbers(value: Value | None) -> np.ndarray:
    """The numbers that a value is, where nothing but a constant is of use."""
    numbers = numbers_of(value)
    if numbers is None:
        raise NotRead
    return numbers


# --- axes


def axis_from_front(axis: int, rank: int) -> int:
    """An axis of ONNX, which may be negative, as a number from 0."""
    if not -rank <= axis < rank:
        raise NotRead
    return int(axis) % rank
