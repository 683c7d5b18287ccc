"""Replace the one RoIAlign per level that tracing or exporting torchvision's MultiScaleRoIAlign gives."""

from __future__ import annotations

import math
from typing import NamedTuple

import topi_ext

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...analysis.row_by_row import as_long_as, mask_of_rows
from ...analysis.shape_values import Dim, shape_values
from ...engine.expressions import constant, either_way, op_name, scalar
from ...engine.graph import Graph
from ...engine.rule import Match, Refusal, Rule
from .level_formula import LevelFormula, read_level_formula

RESHAPING = ("reshape", "repeat", "broadcast_to", "dyn.broadcast_to")


class OneByLevel(Rule):
    """Replace, for each level, `result[rows of the level] = roi_align(feature, regions[rows of the level])`.

    Why legal: the formula assigns each region exactly one of the levels that are there, so each row of the
    result is written once, from the region of the same row, as the operator does. A row without a level,
    where the area of the region is NaN, stays zero. ONNX has no log2 and divides logarithms, which may put a
    region within a millionth of a boundary on the other side; the rewrite follows torchvision.
    """

    before, index, feature, regions = (wildcard() for _ in range(4))
    pooled = is_op("vision.roi_align")(feature, regions)
    pattern = is_op("scatter_elements")(before, index, pooled)

    def where(self, match: Match) -> bool:
        """The write of the last level, from which the others are reached."""
        users = match.graph.users(match.root)
        return not any(_is_level(user) and user.args[0].same_as(match.root) for user in users)

    def plan(self, match: Match) -> _Plan | Refusal:
        scatters, background = _scatters_below(match.root)
        levels = []
        for scatter in scatters:
            level = _read_level(scatter)
            if isinstance(level, Refusal):
                return level
            levels.append(level)
        formula = read_level_formula(levels[0].numbers)
        refusal = _why_not_together(match, levels)
        if refusal:
            return refusal
        if isinstance(formula, Refusal):
            return formula
        return (
            _why_not_all_regions(levels, formula)
            or _why_no_background(match.graph, background, levels[0].numbers)
            # Levels beyond those of the formula get no regions.
            or _Plan(formula, sorted(levels, key=lambda level: level.number)[: formula.count])
        )

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        formula, levels = plan
        attrs = match.pooled.attrs
        return topi_ext.multiscale_roi_align(
            [level.pooled.args[0] for level in levels],
            levels[0].all_regions,
            pooled_size=[int(bins) for bins in attrs.pooled_size],
            scales=[float(level.pooled.attrs.spatial_scale) for level in levels],
            sampling_ratio=int(attrs.sample_ratio),
            canonical_size=formula.canonical_size,
            canonical_level=formula.canonical_level,
            min_level=formula.min_level,
            eps=formula.eps,
            eps_in_log2=formula.eps_in_log2,
        )


class _Plan(NamedTuple):
    formula: LevelFormula
    levels: list[_Level]  # of the formula, in order


class _Level(NamedTuple):
    """The write of one level."""

    scatter: relay.Call
    pooled: relay.Call
    numbers: relay.Expr  # of the level of each region
    number: float
    all_regions: relay.Expr


def _scatters_below(root: relay.Expr) -> tuple[list[relay.Call], relay.Expr]:
    """The chain of writes, one per level, and the tensor that the first of them writes to."""
    scatters = []
    while _is_level(root):
        scatters.append(root)
        root = root.args[0]
    return scatters, root


def _is_level(node: relay.Expr) -> bool:
    return op_name(node) == "scatter_elements" and op_name(node.args[2]) == "vision.roi_align"


def _read_level(scatter: relay.Call) -> _Level | Refusal:
    pooled = scatter.args[2]
    numbers, number = _level_of_rows(_repeated_rows(scatter.args[1]))
    if numbers is None or number is None:
        return Refusal("the rows written are not those of one level")
    taken = _without_integer_index(pooled.args[1])
    takes_rows = op_name(taken) == "take" and _axis(taken) == 0
    all_regions, rows = taken.args if takes_rows else (None, None)
    of_regions = _level_of_rows(rows)
    if all_regions is None or of_regions[0] is None:
        return Refusal("the regions of a level are not gathered unchanged from all regions")
    if not of_regions[0].same_as(numbers) or of_regions[1] != number:
        return Refusal("the regions of one level are written to the rows of another")
    attrs = scatter.attrs
    if int(attrs.axis) != 0 or str(attrs.reduction) != "update":
        return Refusal("the rows are not written by a plain scatter")
    if str(pooled.attrs.layout) != "NCHW" or str(pooled.attrs.mode) != "avg":
        return Refusal("the RoIAlign is not of NCHW data with mode avg")
    return _Level(scatter, pooled, numbers, number, all_regions)


def _level_of_rows(rows: relay.Expr | None) -> tuple[relay.Expr | None, float | None]:
    """(levels of all regions, one level) where `rows` are the indices of that level's regions, else Nones."""
    mask = None if rows is None else mask_of_rows(rows)
    for numbers, number in either_way(mask) if op_name(mask) == "equal" else []:
        if scalar(number) is not None:
            return numbers, scalar(number)
    return None, None


def _repeated_rows(index: relay.Expr) -> relay.Expr | None:
    """The row indices that a rank-4 index broadcasts along all other axes, or None.

    Their number is right: the index has as many rows as the tensor that is written.
    """
    if len(index.checked_type.shape) != 4:
        return None
    while op_name(index) in RESHAPING:
        of = index.args[0]
        if len(of.checked_type.shape) == 1:
            column = [getattr(length, "value", None) for length in index.checked_type.shape]
            return of if op_name(index) == "reshape" and column[1:] == [1, 1, 1] else None
        if len(of.checked_type.shape) != 4 or not _keeps_rows(index):
            return None
        index = of
    return None


def _keeps_rows(reshaping: relay.Call) -> bool:
    if op_name(reshaping) == "reshape":
        return int(reshaping.attrs.newshape[0]) == 0
    return op_name(reshaping) != "repeat" or int(reshaping.attrs.axis) % 4 != 0


def _without_integer_index(regions: relay.Expr) -> relay.Expr:
    """The regions before ONNX split off their batch index, cast it to an integer, and put it back."""
    if op_name(regions) != "concatenate" or int(regions.attrs.axis) != 1 or len(regions.args[0].fields) != 2:
        return regions
    index, corners = regions.args[0].fields
    while op_name(index) in ("cast", "expand_dims", "squeeze"):
        index = index.args[0]
    columns = (_columns(index), _columns(corners))
    same = columns == ([0], [1, 2, 3, 4]) and index.args[0].same_as(corners.args[0])
    return corners.args[0] if same else regions


def _columns(take: relay.Expr) -> list[int] | None:
    """The columns that are sliced from a matrix, or None."""
    index = constant(take.args[1]) if op_name(take) == "take" and _axis(take) == 1 else None
    return None if index is None else index.ravel().tolist()


def _axis(take: relay.Call) -> int | None:
    return int(take.attrs.axis) if take.attrs.axis is not None and int(take.attrs.batch_dims) == 0 else None


# --- why not


def _why_not_together(match: Match, levels: list[_Level]) -> Refusal | None:
    first = levels[0]
    for level in levels:
        inner = [level.pooled] if level.scatter.same_as(match.root) else [level.pooled, level.scatter]
        if any(len(match.graph.users(node)) > 1 for node in inner):
            return Refusal("the result of one level is used elsewhere")
        if not level.numbers.same_as(first.numbers) or not level.all_regions.same_as(first.all_regions):
            return Refusal("the levels are computed from different regions")
        if not 0 < float(level.pooled.attrs.spatial_scale) < math.inf:
            return Refusal("a level has no scale")
        both = level.pooled.attrs, first.pooled.attrs
        if len({(*map(int, attrs.pooled_size), max(int(attrs.sample_ratio), 0)) for attrs in both}) > 1:
            return Refusal("the levels have different numbers of bins or samples")
    maps = [level.pooled.args[0].checked_type for level in levels]
    shapes = [map_.shape for map_ in maps]
    if len({map_.dtype for map_ in maps}) > 1 or maps[0].dtype not in ("float32", "float16"):
        return Refusal("the feature maps are not all float32 or all float16")
    images, channels, *sides = ([getattr(n, "value", None) for n in axis] for axis in zip(*shapes))
    if None in channels:
        return Refusal("the number of channels is known only at run time")
    if len({*images} - {None}) > 1 or any(0 in lengths for lengths in sides):
        return Refusal("the feature maps have different batch sizes, or no pixels")
    return None


def _why_not_all_regions(levels: list[_Level], formula: LevelFormula) -> Refusal | None:
    """Why the pooled levels are not those of the formula, or not computed from these regions."""
    numbers = sorted(level.number for level in levels)
    if numbers != sorted(set(numbers)) or numbers[: formula.count] != list(range(formula.count)):
        return Refusal(
            f"the formula has {formula.count} levels, but the regions of level {numbers} are pooled"
        )
    regions = levels[0].all_regions
    parts = regions.args[0].fields if op_name(regions) == "concatenate" else []
    columns = [getattr(part.checked_type.shape[1], "value", None) for part in parts]
    if columns != [1, 4] or int(regions.attrs.axis) != 1 or not formula.is_of(parts[1]):
        return Refusal("the levels are computed from other regions")
    return None


def _why_no_background(graph: Graph, background: relay.Expr, numbers: relay.Expr) -> Refusal | None:
    lengths = None
    if op_name(background) == "reshape" and int(background.attrs.newshape[0]) == 0:
        background = background.args[0]
    value = constant(background)
    if value is not None:
        zero = not value.any()
    elif op_name(background) in ("full", "dyn.full"):
        zero = scalar(background.args[0]) == 0
        lengths = shape_values(graph, background.args[1]) if op_name(background) == "dyn.full" else None
    else:
        zero = op_name(background) in ("zeros", "zeros_like")
    if not zero:
        return Refusal("rows without a level are not zero")
    length = getattr(background.checked_type.shape[0], "value", None)
    length = lengths[0] if length is None and lengths is not None else length
    length = as_long_as(length.tensor) if isinstance(length, Dim) and length.axis == 0 else length
    if length != as_long_as(numbers):
        return Refusal("the number of rows of the result may differ from that of the regions")
    return None
