"""Einsum, as products of matrices where it is one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Callable, NamedTuple, Optional

from tvm import relay

from ._products import broadcast_size, split_axes

Size = Optional[int]  # None for one that is known only at run time
# The product of two tensors of matrices of these sizes, whose leading axes broadcast.
Product = Callable[[relay.Expr, relay.Expr, Sequence[Size], Sequence[Size]], relay.Expr]


class Operand(NamedTuple):
    """A tensor, and the letter and the size of each axis."""

    expr: relay.Expr
    letters: list[str]
    sizes: list[Size]

    def size(self, letter: str) -> Size:
        """Axes that it lacks broadcast."""
        return self.sizes[self.letters.index(letter)] if letter in self.letters else 1

    def length(self, letter: str) -> relay.Expr:
        """A vector of a size, at run time."""
        place = self.letters.index(letter)
        return relay.strided_slice(relay.shape_of(self.expr, "int64"), [place], [place + 1])

    def in_order(self, letters: Sequence[str]) -> Operand:
        order = [self.letters.index(letter) for letter in letters]
        if order == list(range(len(order))):
            return self
        return Operand(relay.transpose(self.expr, order), list(letters), [self.sizes[at] for at in order])


def einsum(
    equation: str,
    operands: Sequence[relay.Expr],
    sizes: Sequence[Sequence[Size]],
    dtype: str,
    product: Product,
) -> relay.Expr:
    """The sums of products that broadcast, two operands at a time; `product` is that of matrices."""
    if has_diagonal(equation):
        raise NotImplementedError("it takes a diagonal of an operand whose sizes are known only at run time")
    terms, kept = _letters(equation.replace(" ", ""), [len(each) for each in sizes])
    result, *others = (Operand(*each) for each in zip(operands, terms, map(list, sizes)))
    for place, other in enumerate(others):
        needed = {*kept, *chain(*(each.letters for each in others[place + 1 :]))}
        result = _of_two(result, other, needed, kept, dtype, product)
    return _sum_but(kept, result, dtype).in_order(kept).expr


def has_diagonal(equation: str) -> bool:
    """Whether an operand has a letter twice."""
    terms = equation.replace(" ", "").replace(".", "").partition("->")[0].split(",")
    return any(len(set(term)) < len(term) for term in terms)


def _of_two(
    left: Operand, right: Operand, needed: Collection[str], kept: Sequence[str], dtype: str, product: Product
) -> Operand:
    """The products of two operands, summed over the axes that nothing needs."""
    left, right = (
        _sum_but({*needed, *its.letters}, mine, dtype) for mine, its in ((left, right), (right, left))
    )
    letters = [*(letter for letter in kept if letter in {*left.letters, *right.letters})]
    letters += [letter for letter in dict.fromkeys((*left.letters, *right.letters)) if letter not in letters]
    both = set(left.letters) & set(right.letters)
    summed = [letter for letter in letters if letter not in needed]
    batch = [letter for letter in letters if letter in both and letter in needed]
    rows, columns = (
        [letter for letter in letters if letter in each.letters and letter not in both]
        for each in (left, right)
    )
    pairs = [(left.size(letter), right.size(letter)) for letter in summed]
    if any(mine != its and 1 in (mine, its) for mine, its in pairs) or not (summed and rows and columns):
        return _of_elements(left, right, letters, needed, dtype)
    if letters.index(columns[0]) < letters.index(rows[0]):
        left, right, rows, columns = right, left, columns, rows
    lead = [[letter] for letter in batch]
    factors = _grouped(left, [*lead, rows, summed]), _grouped(right, [*lead, summed, columns])
    matrices = product(*(factor for factor, _ in factors), *(sizes for _, sizes in factors))
    letters = [*batch, *rows, *columns]
    sizes = [broadcast_size((left.size(letter), right.size(letter))) for letter in letters]
    if len(rows) > 1 or len(columns) > 1:
        matrices = split_axes(matrices, sizes, [_length(left, right, letter) for letter in letters])
    return Operand(matrices, letters, sizes)


def _grouped(operand: Operand, groups: Sequence[Sequence[str]]) -> tuple[relay.Expr, list[Size]]:
    """The tensor with the axes of each group as one, and the sizes."""
    operand = operand.in_order([*chain(*groups)])
    sizes = [[operand.size(letter) for letter in group] for group in groups]
    merged = [
        None if None in group else math.prod(size for size in group if size is not None) for group in sizes
    ]
    expr, counts = operand.expr, [len(group) for group in groups]
    if None not in merged:
        return (relay.reshape(expr, merged) if max(counts) > 1 else expr), merged
    while max(counts) > 1:  # -3 makes one of two axes, 0 keeps one
        expr = relay.reshape(expr, [code for n in counts for code in (*[-3] * (n // 2), *[0] * (n % 2))])
        counts = [(n + 1) // 2 for n in counts]
    return expr, merged


def _length(left: Operand, right: Operand, letter: str) -> relay.Expr:
    """A vector of the size of an axis of the product, at run time."""
    mine, *its = [each.length(letter) for each in (left, right) if letter in each.letters]
    return relay.where(relay.equal(mine, relay.const(1, "int64")), its[0], mine) if its else mine


def _of_elements(
    left: Operand, right: Operand, letters: Sequence[str], needed: Collection[str], dtype: str
) -> Operand:
    """The same, element by element."""
    aligned = []
    for each in (left, right):
        expr = each.in_order([letter for letter in letters if letter in each.letters]).expr
        for place, letter in enumerate(letters):
            expr = expr if letter in each.letters else relay.expand_dims(expr, place)
        aligned.append(_wide(expr, dtype))
    sizes = [broadcast_size((left.size(letter), right.size(letter))) for letter in letters]
    result = _sum_but(needed, Operand(relay.multiply(*aligned), list(letters), sizes), "wide")
    return result._replace(expr=_narrow(result.expr, dtype))


def _sum_but(kept: Collection[str], operand: Operand, dtype: str) -> Operand:
    """The sum over all axes that are not kept."""
    axes = [place for place, letter in enumerate(operand.letters) if letter not in kept]
    if not axes:
        return operand
    rest = [place for place in range(len(operand.letters)) if place not in axes]
    total = _narrow(relay.sum(_wide(operand.expr, dtype), axes), dtype)
    return Operand(total, [operand.letters[at] for at in rest], [operand.sizes[at] for at in rest])


def _wide(expr: relay.Expr, dtype: str) -> relay.Expr:
    """In a type for sums."""
    return relay.cast(expr, "float32") if dtype == "float16" else expr


def _narrow(expr: relay.Expr, dtype: str) -> relay.Expr:
    return relay.cast(expr, dtype) if dtype == "float16" else expr


def _letters(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """The axes of each operand and of the result by letters; an ellipsis is numbers, 0 for its last axis."""
    left, arrow, right = equation.partition("->")
    terms = []
    for term, rank in zip(left.split(","), ranks):
        front, dots, back = term.partition("...")
        more = range(rank - len(front) - len(back)) if dots else range(0)
        terms.append([*front, *(str(place) for place in reversed(more)), *back])
    of_dots = max(([each for each in term if each.isdigit()] for term in terms), key=len)
    if not arrow:
        once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        return terms, [*of_dots, *once]
    front, dots, back = right.partition("...")
    return terms, [*front, *(of_dots if dots else ()), *back]
