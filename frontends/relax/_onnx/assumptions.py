"""Of which sizes what a node asks is known: of multiples of some number, or of at least some.

A network that halves its images and doubles them again joins them with what they were: ONNX fails where
they are not of an even size. So does one whose windows or blocks have to fill its images. Others compute
something else for a few sizes, as where images are smaller than what is cut out of them. The import goes on
for all other sizes, and `checked` compares those of the inputs as the network runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.tirx.analysis import undefined_vars

from .sizes import SizeUnknown, at_least, simplified

MOST = 4096  # that a size may have to be at least


@dataclass(frozen=True)
class Assumed:
    """Of which variable each variable of the inputs is a multiple, and how large variables are at least."""

    sizes: Mapping[tirx.Var, Expr]
    least: Mapping[tirx.Var, int]

    def size(self, extent: tirx.Var | int) -> Expr | int:
        return self.sizes.get(extent, extent) if isinstance(extent, tirx.Var) else extent

    def refined(self, unknown: SizeUnknown) -> Assumed | None:
        """With as little more as is enough to know what was asked, or None."""
        variables = sorted({var for expr in unknown.exprs for var in undefined_vars(expr)}, key=str)
        if unknown.is_known is None or not variables:
            return None
        multiples = (
            more
            for count in range(1, len(variables) + 1)
            for some in itertools.combinations(variables, count)
            for more in self._multiples(some, unknown.exprs)
        )
        # Only few sizes are not large, but most are no multiples.
        more = self._larger(variables, unknown) or next(
            filter(lambda more: more._answers(unknown), multiples), None
        )
        if more is None:
            return None
        return Assumed({var: simplified(size, more.sizes) for var, size in self.sizes.items()}, more.least)

    def _answers(self, unknown: SizeUnknown) -> bool:
        """Whether it is known then."""
        assert unknown.is_known
        with at_least(self.least):
            return unknown.is_known(*(simplified(expr, self.sizes) for expr in unknown.exprs))

    def _multiples(self, some: tuple[tirx.Var, ...], exprs: Iterable[Expr]) -> Iterator[Assumed]:
        """Some variables are multiples, whose sizes are those of others then."""
        for divisor in sorted({divisor for expr in exprs for divisor in _divisors(expr)} - {0, 1}):
            others = {var: tirx.Var(f"{var.name}_by_{divisor}", "int64") for var in some}
            rounded = {others[var]: -(-self.least.get(var, 1) // divisor) for var in some}
            yield Assumed({var: other * divisor for var, other in others.items()}, {**self.least, **rounded})

    def _larger(self, variables: Iterable[tirx.Var], unknown: SizeUnknown) -> Assumed | None:
        """All variables have at least the least number that is enough, which is searched for by halves."""

        def of(number: int) -> Assumed:
            numbers = {var: max(self.least.get(var, 1), number) for var in variables}
            return Assumed({}, {**self.least, **numbers})

        too_few, enough = 1, MOST
        if not of(enough)._answers(unknown):
            return None
        while enough - too_few > 1:
            half = (too_few + enough) // 2
            too_few, enough = (too_few, half) if of(half)._answers(unknown) else (half, enough)
        return of(enough)

    def checked(self, builder: relax.BlockBuilder, parameters: list[relax.Var]) -> list[relax.Var]:
        """The inputs with the sizes that are assumed, which are compared as the network runs."""
        changed = {var: size for var, size in self.sizes.items() if not var.same_as(size)}
        for var, size in changed.items():
            (inner,) = undefined_vars(size)
            multiple = int(simplified(size, {inner: tirx.IntImm("int64", 1)}))
            # As a value of its own: TVM does not compile what only this comparison computes.
            values = builder.emit(relax.ShapeExpr([tirx.floordiv(var, multiple)]))
            builder.match_cast(values, relax.ShapeType([inner]))
        for var in dict.fromkeys(var for size in self.sizes.values() for var in undefined_vars(size)):
            if self.least.get(var, 1) > 1:
                large = tirx.Max(var, tirx.IntImm("int64", self.least[var]))
                builder.match_cast(relax.ShapeExpr([var]), relax.ShapeType([large]))
        return [
            builder.match_cast(each, relax.TensorType([*map(self.size, each.ty.shape)], each.ty.dtype))
            if any(extent in changed for extent in each.ty.shape)
            else each
            for each in parameters
        ]


def _divisors(expr: Expr) -> Iterator[int]:
    parts = [getattr(expr, name) for name in ("a", "b") if hasattr(expr, name)]
    if isinstance(expr, (tirx.FloorDiv, tirx.FloorMod)) and isinstance(parts[1], tirx.IntImm):
        yield abs(int(parts[1]))
    for part in parts:
        yield from _divisors(part)
