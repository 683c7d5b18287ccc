"""Inverses and determinants of matrices of a few rows, written out in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from tvm import relay

MOST_COFACTORS = 4  # rows: a cofactor has as many terms as there are permutations of the other rows
LARGEST_SOLVED = 16  # rows, of which each adds a dozen operators


def inverse_by_cofactors(data: relay.Expr, lead: Sequence[int], size: int, dtype: str) -> relay.Expr:
    """The inverses of (..., size, size), of up to MOST_COFACTORS rows."""
    flat, cofactors = _flat_and_cofactors(data, lead, size)
    first = np.arange(size)  # row
    transposed = first[:, None] + first[None] * size
    result = _taken(cofactors, transposed.ravel()) / _along_first_row(flat, cofactors, size, True)
    return relay.cast(relay.reshape(result, [*lead, size, size]), dtype)


def determinant_by_cofactors(data: relay.Expr, lead: Sequence[int], size: int, dtype: str) -> relay.Expr:
    """The determinants of (..., size, size), of up to MOST_COFACTORS rows."""
    return relay.cast(_along_first_row(*_flat_and_cofactors(data, lead, size), size, False), dtype)


def _flat_and_cofactors(data: relay.Expr, lead: Sequence[int], size: int) -> tuple[relay.Expr, relay.Expr]:
    flat = relay.cast(relay.reshape(data, [*lead, size * size]), "float64")
    cofactors = reduce(
        relay.add,
        (
            reduce(relay.multiply, (_taken(flat, factor) for factor in term), relay.const(signs, "float64"))
            for signs, term in _cofactors(size)
        ),
    )
    return flat, cofactors


def _along_first_row(flat: relay.Expr, cofactors: relay.Expr, size: int, keepdims: bool) -> relay.Expr:
    first = np.arange(size)
    return relay.sum(_taken(flat, first) * _taken(cofactors, first), axis=-1, keepdims=keepdims)


def _taken(flat: relay.Expr, places: np.ndarray) -> relay.Expr:
    return relay.take(flat, relay.const(places.astype("int32")), axis=-1, mode="fast")


def _cofactors(size: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """The terms of all cofactors of a matrix, each as the signs and the places of its factors."""
    rest = [np.delete(np.arange(size), place) for place in range(size)]
    pairs = list(itertools.product(range(size), repeat=2))
    for order in itertools.permutations(range(size - 1)):
        parity = np.linalg.det(np.eye(size - 1)[list(order)]) if size > 1 else 1
        signs = np.array([parity * (-1) ** (row + column) for row, column in pairs])
        yield (
            signs.round(),
            [
                np.array([rest[row][at] * size + rest[column][order[at]] for row, column in pairs])
                for at in range(size - 1)
            ],
        )


def solved(equations: relay.Expr, size: int, width: int) -> relay.Expr:
    """The unknowns, by elimination: each takes the row in which its factor is the largest of those left."""
    rows = relay.const(np.arange(size, dtype="int32").reshape(size, 1))
    zero, none, beyond = relay.const(0.0, "float64"), relay.const(-1.0, "float64"), relay.const(size)
    is_left = relay.const(np.ones((size, 1), bool))
    chosen = []
    for unknown in range(size):
        factors = _taken(equations, np.array([unknown]))
        sizes = relay.where(is_left, relay.abs(factors), none)
        are_best = relay.equal(sizes, relay.max(sizes, -2, keepdims=True))
        is_best = relay.equal(rows, relay.min(relay.where(are_best, rows, beyond), -2, keepdims=True))
        row = relay.sum(relay.where(is_best, equations, zero), -2, keepdims=True)
        row = row / _taken(row, np.array([unknown]))
        equations = relay.where(is_best, row, equations - factors * row)
        is_left = relay.logical_and(is_left, relay.logical_not(is_best))
        chosen.append(is_best)
    right = _taken(equations, np.arange(size, width))
    return relay.concatenate(
        [relay.sum(relay.where(is_best, right, zero), -2, keepdims=True) for is_best in chosen], -2
    )
