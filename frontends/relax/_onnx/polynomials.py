"""Sums of products of sizes, written in one way.

TVM takes `h * w * n` and `n * h * w` for two sizes, and does not always see that what an image has, and what
it lacks to a multiple, are such a multiple: neither its proofs nor its shapes know that they are one.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.analysis import undefined_vars

Factor = tuple[str, tuple[int, ...]]  # how it is written, and the variables in it: two may have one name
Terms = dict[tuple[Factor, ...], int]  # the factors of each product, in order, and how often it is added


class _Sum:
    """The products of an expression, and what their factors are."""

    def __init__(self, expr: Expr) -> None:
        self.exprs: dict[Factor, Expr] = {}
        self.terms = {factors: times for factors, times in self._of(expr).items() if times}

    def _of(self, expr: Expr) -> Terms:
        if isinstance(expr, tirx.IntImm):
            return {(): int(expr)}
        if isinstance(expr, (tirx.Add, tirx.Sub)):
            sign, total = (1 if isinstance(expr, tirx.Add) else -1), Counter(self._of(expr.a))
            for factors, times in self._of(expr.b).items():
                total[factors] += sign * times
            return total
        if isinstance(expr, tirx.Mul):
            product: Counter[Any] = Counter()
            for one, times in self._of(expr.a).items():
                for other, more in self._of(expr.b).items():
                    product[tuple(sorted((*one, *other)))] += times * more
            return product
        if isinstance(expr, (tirx.FloorDiv, tirx.FloorMod)) and isinstance(expr.b, tirx.IntImm):
            parts = self._in_parts(expr.a, int(expr.b))
            return parts if isinstance(expr, tirx.FloorDiv) else self._of(expr.a - self.expr(parts) * expr.b)
        return self._factor(expr)

    def _factor(self, expr: Expr) -> Terms:
        factor = str(expr), tuple(map(hash, undefined_vars(expr)))
        self.exprs[factor] = expr
        return {(factor,): 1}

    def _in_parts(self, expr: Expr, number: int) -> Terms:
        """Of this many, rounded down: what is a multiple of them leaves the fraction."""
        if number < 0:
            expr, number = 0 - expr, -number
        terms = {factors: times for factors, times in self._of(expr).items() if times % number}
        first = max(terms, default=())
        if first and terms[first] < 0 and 2 * (terms[first] % number) >= number:  # -x // 8 as -((x + 7) // 8)
            turned = self._in_parts(number - 1 - expr, number)
            return {factors: -times for factors, times in turned.items()}
        whole: Counter[Any] = Counter()
        left: Terms = {}
        for factors, times in self._of(expr).items():
            whole[factors], left[factors] = divmod(times, number)
        if first:
            whole.update(self._factor(tirx.floordiv(self.expr(left), _number(number))))
        return whole

    def expr(self, terms: Terms) -> Expr:
        total = _number(0)
        in_turn = sorted(terms.items(), key=lambda term: (term[1] > 0, term[0]), reverse=True)
        for factors, times in in_turn:
            if not times:
                continue
            product = self._product(factors, abs(times))
            total = total + product if times > 0 else total - product
        return total

    def _product(self, factors: tuple[Factor, ...], times: int) -> Expr:
        return functools.reduce(operator.mul, [*(self.exprs[each] for each in factors), _number(times)])


def in_order(expr: Expr) -> Expr:
    """The same, as all that are equal to it are written."""
    found = _Sum(expr)
    return found.expr(found.terms)


def quotient(one: Expr, other: Expr) -> Expr | None:
    """How often a product is in each part of a sum, where that is a whole number of times."""
    found = _Sum(one)
    divisors = list(_Sum(other).terms.items())
    if len(divisors) != 1:
        return None
    ((divisor, parts),) = divisors
    quotients: Terms = {}
    for factors, times in found.terms.items():
        left = Counter(factors)
        left.subtract(divisor)
        if min(left.values(), default=0) < 0 or times % parts:
            return None
        quotients[tuple(sorted(left.elements()))] = times // parts
    return found.expr(quotients)


def _number(value: int) -> Expr:
    return tirx.IntImm("int64", value)
