"""Of which sizes what a node asks is known: of all, in parts and a rest, of multiples, or of at least some.

A network that pads its images until windows fill them computes with how many windows there are, and with how
much is missing in the last: these are the sizes then, in place of that of the images. One that halves its
images and doubles them again joins them with what they were: ONNX fails where they are not of an even size.
Others compute something else for a few sizes, as where images are smaller than what is cut out of them. The
import goes on for all other sizes, and `checked` compares those of the inputs as the network runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.tirx.analysis import undefined_vars

from .sizes import LARGEST, SizeUnknown, least_of, simplified, within

MOST = 4096  # that a size may have to be at least


@dataclass(frozen=True)
class Assumed:
    """What each variable of the inputs is computed from, what these others are, and how large they may be."""

    sizes: Mapping[tirx.Var, Expr]
    values: Mapping[tirx.Var, Expr]
    ranges: Mapping[tirx.Var, range]

    @classmethod
    def nothing(cls, variables: Iterable[tirx.Var]) -> Assumed:
        return cls({var: var for var in variables}, {}, {})

    def size(self, extent: tirx.Var | int) -> Expr | int:
        return self.sizes.get(extent, extent) if isinstance(extent, tirx.Var) else extent

    def simplified(self, expr: Expr) -> Expr:
        """An expression of the inputs' variables, by what they are computed from."""
        return simplified(expr, self._changed())

    def _changed(self) -> dict[tirx.Var, Expr]:
        return {var: size for var, size in self.sizes.items() if not var.same_as(size)}

    def refined(self, unknown: SizeUnknown) -> Assumed | None:
        """With as little more as is enough to know what was asked, or None."""
        variables = sorted({var for expr in unknown.exprs for var in undefined_vars(expr)}, key=str)
        if unknown.is_known is None or not variables:
            return None
        sizes = [var for var in variables if not self._is_rest(var)]
        divisors = sorted({divisor for expr in unknown.exprs for divisor in _divisors(expr)} - {0, 1})
        some = [each for count in range(1, len(sizes) + 1) for each in itertools.combinations(sizes, count)]
        # Parts and a rest are all sizes; only few sizes are not large, but most are no multiples.
        for more in itertools.chain(
            (self._in_parts(each, divisor, way) for each in some for divisor in divisors for way in (1, -1)),
            self._larger(sizes, unknown),
            (self._multiples(each, divisor) for each in some for divisor in divisors),
            (self._without_rest(var) for var in variables if self._is_rest(var)),
        ):
            if more._answers(unknown):
                return self._followed_by(more)
        return None

    def _is_rest(self, var: tirx.Var) -> bool:
        return self._range(var).stop < LARGEST

    def _range(self, var: tirx.Var) -> range:
        return self.ranges.get(var, range(1, LARGEST))

    def _answers(self, unknown: SizeUnknown) -> bool:
        """Whether it is known then."""
        assert unknown.is_known
        with within(self.ranges):
            return unknown.is_known(*(simplified(expr, self.sizes) for expr in unknown.exprs))

    def _followed_by(self, more: Assumed) -> Assumed:
        with within(more.ranges):
            sizes = {var: simplified(size, more.sizes) for var, size in self.sizes.items()}
        with within({}):
            values = {var: simplified(value, self.values) for var, value in more.values.items()}
        return Assumed(sizes, {**self.values, **values}, more.ranges)

    def _in_parts(self, some: tuple[tirx.Var, ...], divisor: int, way: int) -> Assumed:
        """Some variables are multiples and a rest behind them, or as many pixels less as are missing."""
        sizes, values, ranges = {}, {}, dict(self.ranges)
        for var in some:
            parts, rest = (tirx.Var(f"{var.name}_{name}_{divisor}", "int64") for name in ("by", "rest"))
            sizes[var] = parts * divisor + rest * way
            values[parts] = tirx.floordiv(var if way > 0 else var + (divisor - 1), divisor)
            values[rest] = (var - values[parts] * divisor) * way
            least = self._range(var).start
            ranges[parts] = range(least // divisor if way > 0 else -(-least // divisor), LARGEST)
            ranges[rest] = range(divisor)
        return Assumed(sizes, values, ranges)

    def _multiples(self, some: tuple[tirx.Var, ...], divisor: int) -> Assumed:
        """Some variables are multiples, whose sizes are those of others then."""
        others = {var: tirx.Var(f"{var.name}_by_{divisor}", "int64") for var in some}
        rounded = {
            other: range(-(-self._range(var).start // divisor), LARGEST) for var, other in others.items()
        }
        return Assumed(
            {var: other * divisor for var, other in others.items()},
            {other: tirx.floordiv(var, divisor) for var, other in others.items()},
            {**self.ranges, **rounded},
        )

    def _without_rest(self, rest: tirx.Var) -> Assumed:
        return Assumed({rest: tirx.IntImm("int64", 0)}, {}, self.ranges)

    def _larger(self, variables: Iterable[tirx.Var], unknown: SizeUnknown) -> Iterator[Assumed]:
        """All variables have at least the least number that is enough, which is searched for by halves."""

        def of(number: int) -> Assumed:
            larger = {var: range(max(self._range(var).start, number), LARGEST) for var in variables}
            return Assumed({}, {}, {**self.ranges, **larger})

        too_few, enough = 0, MOST
        if not of(enough)._answers(unknown):
            return
        while enough - too_few > 1:
            half = (too_few + enough) // 2
            too_few, enough = (too_few, half) if of(half)._answers(unknown) else (half, enough)
        yield of(enough)

    def checked(self, builder: relax.BlockBuilder, parameters: list[relax.Var]) -> list[relax.Var]:
        """The inputs with the sizes that are assumed, which are compared as the network runs."""
        changed = self._changed()
        for inner in dict.fromkeys(var for size in changed.values() for var in undefined_vars(size)):
            if inner not in self.values:  # one of the inputs
                continue
            # As a value of its own: TVM does not compile what only this comparison computes.
            values = builder.emit(relax.ShapeExpr([self.values[inner]]))
            builder.match_cast(values, relax.ShapeType([inner]))
        checked = [
            builder.match_cast(each, relax.TensorType([*map(self.size, each.ty.shape)], each.ty.dtype))
            if any(extent in changed for extent in each.ty.shape)
            else each
            for each in parameters
        ]
        for var, size in self.sizes.items():
            with within(self.ranges):
                least = least_of(size)
            if least > 1:
                large = tirx.Max(var, tirx.IntImm("int64", least))
                builder.match_cast(relax.ShapeExpr([var]), relax.ShapeType([large]))
        return checked


def _divisors(expr: Expr) -> Iterator[int]:
    parts = [getattr(expr, name) for name in ("a", "b") if hasattr(expr, name)]
    if isinstance(expr, (tirx.FloorDiv, tirx.FloorMod)) and isinstance(parts[1], tirx.IntImm):
        yield abs(int(parts[1]))
    for part in parts:
        yield from _divisors(part)
