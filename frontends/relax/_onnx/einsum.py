"""Einsum by products of matrices, one operand after the other.

An operand is an expression and a letter for each of its axes; the axes of an ellipsis have digits.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from typing import NamedTuple

from tvm import relax

from .node import Node, shape_of
from .sizes import is_number

op = relax.op


class _Operand(NamedTuple):
    data: relax.Expr
    letters: str


def einsum(n: Node) -> relax.Expr:
    terms, result = _parsed(n)
    extents: dict[str, int] = {}
    for at, letters in enumerate(terms):
        for letter, extent in zip(letters, n.shape(at)):
            if is_number(extents.setdefault(letter, extent), 1):
                extents[letter] = extent
            elif not is_number(extent, 1) and extent != extents[letter]:
                n.refuse(f"the axes '{letter}' have {extents[letter]} and {extent} elements")
    operands = [_without_ones(n, _Operand(n.data(at), letters)) for at, letters in enumerate(terms)]
    found = operands[0]
    for at, operand in enumerate(operands[1:], 1):
        later = {*result, *(letter for each in operands[at + 1 :] for letter in each.letters)}
        left, right = (
            _summed(n, found, later | {*operand.letters}),
            _summed(n, operand, later | {*found.letters}),
        )
        found = _product(n, left, right, later)
    found = _summed(n, found, {*result})
    ones = "".join(letter for letter in result if letter not in found.letters)
    data, letters = op.reshape(found.data, [1] * len(ones) + list(shape_of(found.data))), ones + found.letters
    return op.permute_dims(n.emit(data), [letters.index(letter) for letter in result])


def _parsed(n: Node) -> tuple[list[str], str]:
    """The letters of each operand and of the result."""
    given, arrow, wanted = n.attribute("equation").replace(" ", "").partition("->")
    terms = given.split(",")
    # Without an arrow, NumPy has capital letters first in the result, ONNX Runtime last.
    is_clear = arrow or not any(letter.isupper() for letter in given)
    if len(terms) != len(n.inputs) or not is_clear or any(letter.isdigit() for letter in given):
        n.refuse(f"the equation {n.attribute('equation')} is not supported of {len(n.inputs)} operands")
    axes = [n.rank(at) - len(term.replace("...", "")) for at, term in enumerate(terms)]
    longest = max((count for count, term in zip(axes, terms) if "..." in term), default=0)
    behind = string.digits[:longest]  # an ellipsis of fewer axes has the last ones
    terms = [term.replace("...", behind[longest - count :]) for term, count in zip(terms, axes)]
    for at, term in enumerate(terms):
        if len(term) != n.rank(at) or len({*term}) < len(term):
            n.refuse(f"its input {at} has {n.rank(at)} axes, and not one for each of the letters {term}")
    counted = Counter("".join(terms))
    alone = "".join(sorted(each for each in counted if counted[each] == 1 and each.isalpha()))
    return terms, wanted.replace("...", behind) if arrow else behind + alone


def _without_ones(n: Node, operand: _Operand) -> _Operand:
    """Without the axes of one element, which are broadcast."""
    kept = [
        (letter, each)
        for letter, each in zip(operand.letters, shape_of(operand.data))
        if not is_number(each, 1)
    ]
    data = n.emit(op.reshape(operand.data, [extent for _, extent in kept]))
    return _Operand(data, "".join(letter for letter, _ in kept))


def _summed(n: Node, operand: _Operand, needed: set[str]) -> _Operand:
    axes = [axis for axis, letter in enumerate(operand.letters) if letter not in needed]
    if not axes:
        return operand
    data = n.emit(op.sum(operand.data, axes))
    return _Operand(data, "".join(letter for letter in operand.letters if letter in needed))


def _product(n: Node, left: _Operand, right: _Operand, needed: set[str]) -> _Operand:
    """Summed over what both have and nothing else needs."""
    shared = [letter for letter in left.letters if letter in right.letters]
    batch = [letter for letter in shared if letter in needed]
    inner = [letter for letter in shared if letter not in needed]
    rows, columns = ([letter for letter in each.letters if letter not in shared] for each in (left, right))
    extents = dict(zip(left.letters + right.letters, shape_of(left.data) + shape_of(right.data)))

    def matrices(operand: _Operand, *parts: list[str]) -> relax.Expr:
        order = [operand.letters.index(letter) for part in parts for letter in part]
        shape = [math.prod(extents[letter] for letter in part) for part in parts]
        return n.emit(op.reshape(n.emit(op.permute_dims(operand.data, order)), shape))

    product = n.emit(op.matmul(matrices(left, batch, rows, inner), matrices(right, batch, inner, columns)))
    letters = [*batch, *rows, *columns]
    return _Operand(n.emit(op.reshape(product, [extents[each] for each in letters])), "".join(letters))
