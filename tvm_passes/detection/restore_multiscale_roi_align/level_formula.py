"""Recover the formula by which a graph assigns pyramid levels, and the boxes it is applied to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import relay
from tvm.relay.dataflow_pattern import DFPattern, is_constant, is_op, wildcard

from ...engine.expressions import either_way, op_name, scalar, static_shape
from ...engine.match import match
from ...engine.rule import Refusal

area, size, ln2, canonical_level, eps, min_level = (wildcard(), *(is_constant() for _ in range(5)))


def _log2(x: DFPattern) -> DFPattern:
    return is_op("log2")(x) | is_op("divide")(is_op("log")(x), ln2)


ratio = is_op("divide")(is_op("sqrt")(area), size)
eps_outside = is_op("add")(is_op("add")(_log2(ratio), canonical_level), eps)
eps_inside = is_op("add")(_log2(is_op("add")(ratio, eps)), canonical_level)
clipped = is_op("clip")(is_op("floor")(eps_outside | eps_inside))
level = is_op("cast")(clipped)


@dataclass
class LevelFormula:
    """The constants of torchvision's formula, clipped to `count` levels from `min_level` on."""

    area: relay.Expr
    canonical_size: float
    canonical_level: int
    min_level: int
    count: int
    eps: float
    eps_in_log2: bool

    def is_of(self, boxes: relay.Expr) -> bool:
        """Whether the area is computed from these boxes, row by row."""
        if _is_area_of(self.area, boxes):
            return True
        areas, parts = _joined(self.area), _joined(boxes)
        return len(areas) == len(parts) and all(map(_is_area_of, areas, parts))


def read_level_formula(numbers: relay.Expr) -> LevelFormula | Refusal:
    """The formula by which levels are computed, or why it is not torchvision's."""
    offset = 0
    if op_name(numbers) == "subtract":
        numbers, offset = numbers.args[0], scalar(numbers.args[1])
    found = match(level, numbers)
    if found is None:
        return Refusal("the levels are not computed by torchvision's formula")
    if found[area].checked_type.dtype != "float32" or not found[level].checked_type.dtype.startswith("int"):
        return Refusal("the levels are not computed in float32 and then cast to integers")
    if any(static_shape(found[part]) not in ((), (1,)) for part in (size, canonical_level, eps)):
        return Refusal("the formula of the levels has constants that differ between regions")
    if ln2 in found and not math.isclose(scalar(found[ln2]), math.log(2), rel_tol=1e-6):
        return Refusal(
            f"the levels are computed from a logarithm divided by {scalar(found[ln2])}, not by log(2)"
        )
    low, high = (float(bound) for bound in (found[clipped].attrs.a_min, found[clipped].attrs.a_max))
    whole = (low, high, scalar(found[canonical_level]))
    positive = 0 < scalar(found[size]) < math.inf and 0 <= scalar(found[eps]) < math.inf
    if not positive or not all(number.is_integer() for number in whole) or low > high:
        return Refusal("a constant in the formula of the levels is out of range")
    if offset != low:
        return Refusal(f"the first level is {low:g}, but {offset} is subtracted from the levels")
    return LevelFormula(
        area=found[area],
        canonical_size=scalar(found[size]),
        canonical_level=int(scalar(found[canonical_level])),
        min_level=int(low),
        count=int(high - low) + 1,
        eps=scalar(found[eps]),
        eps_in_log2=eps_inside in found,
    )


def _joined(expr: relay.Expr) -> list[relay.Expr]:
    """The tensors that were concatenated along axis 0."""
    rank = len(expr.checked_type.shape)
    if op_name(expr) == "concatenate" and int(expr.attrs.axis) % rank == 0:
        return list(expr.args[0].fields)
    return [expr]


def _is_area_of(product: relay.Expr, boxes: relay.Expr) -> bool:
    if op_name(product) != "multiply":
        return False
    sides = sorted(str(_side_of(factor, boxes)) for factor in product.args)
    return sides == ["(2, 0)", "(3, 1)"]


def _side_of(difference: relay.Expr, boxes: relay.Expr) -> tuple[float, ...] | None:
    """(right or lower, left or upper) column of which this is the difference, or None."""
    if op_name(difference) != "subtract":
        return None
    columns = [column for part in difference.args if (column := _column_of(part, boxes)) is not None]
    return tuple(columns) if len(columns) == 2 else None


def _column_of(expr: relay.Expr, boxes: relay.Expr) -> float | None:
    for factor, column in either_way(expr) if op_name(expr) == "multiply" else []:
        if scalar(factor) == 1:  # torch's `alpha` of a subtraction
            expr = column
    if op_name(expr) != "take" or not expr.args[0].same_as(boxes) or expr.attrs.axis is None:
        return None
    one_of_each_row = int(expr.attrs.axis) == 1 and int(expr.attrs.batch_dims) == 0
    return scalar(expr.args[1]) if one_of_each_row and len(expr.checked_type.shape) == 1 else None
