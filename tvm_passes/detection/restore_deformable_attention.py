"""Restore multi-scale deformable attention where a graph samples each level of a pyramid on its own."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import topi_ext
from topi_ext.deformable_attention.op import FLOATS

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.operators import reduced_axes
from ..engine.expressions import either_way, known_shape, op_name, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass

RESHAPING = ("reshape", "squeeze", "expand_dims")


class SumOfSamples(Rule):
    """Replace `sum(concatenate(grid_sample(level, points), ...) * weights, axis=-1)`.

    Why legal: the operator reads each point as `grid_sample` does, bilinear and with zeros around the map,
    and adds the same products. Only the order of the sum differs, and a point at NaN reads nothing.
    """

    product = is_op("multiply")(wildcard(), wildcard())
    pattern = is_op("sum")(product)

    def plan(self, match: Match) -> _Plan | Refusal | Answer:
        found = _factors(match.product)
        if found is None:
            return NO_MATCH
        joined, weights, between, samples = found
        if not all(map(_is_plain, samples)) or len({int(each.attrs.align_corners) for each in samples}) > 1:
            return Refusal("the samples are not bilinear, in NCHW and with zeros around the map, all alike")
        shapes = [static_shape(node) for sample in samples for node in (sample, *sample.args)]
        if None in (static_shape(joined), static_shape(weights), *shapes):
            return Refusal("the shapes are known only at run time")
        items, channels, queries, _ = known_shape(samples[0])
        count = sum(known_shape(sample)[3] for sample in samples)
        if known_shape(joined) != (items, channels, queries, count):
            return Refusal("the samples of the levels are not side by side along the last axis")
        if reduced_axes(match.root) != {3}:
            return Refusal("the sum is not over the points only")
        if known_shape(weights) != (items, 1, queries, count):
            return Refusal("the weights are not one for each item, query and point")
        for tensors in zip(*(sample.args for sample in samples)):  # the maps, then the points
            types = {tensor.checked_type.dtype for tensor in tensors}
            if len(types) > 1 or not types.issubset(FLOATS):
                return Refusal(f"the maps or the points are not all of type {' or '.join(FLOATS)}")
        if any(len(match.graph.users(node)) > 1 for node in (match.product, *between, *samples)):
            return Refusal("the samples are used elsewhere, too")
        return _Plan(weights, samples)

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        weights, samples = plan
        shapes = [(*known_shape(each.args[0]), known_shape(each)[3]) for each in samples]
        pixels = [
            relay.reshape(each.args[0], (items, channels, height * width))
            for each, (items, channels, height, width, _) in zip(samples, shapes)
        ]
        points = [relay.transpose(each.args[1], (0, 2, 3, 1)) for each in samples]
        result = topi_ext.deformable_attention(
            relay.transpose(relay.concatenate(pixels, 2), (0, 2, 1)),
            relay.concatenate(points, 2),
            relay.squeeze(weights, [1]),
            levels=[level for _, _, *level in shapes],
            align_corners=bool(samples[0].attrs.align_corners),
        )
        result = relay.transpose(result, (0, 2, 1))
        return relay.expand_dims(result, 3) if match.root.attrs.keepdims else result


class RestoreDeformableAttention(RulePass):
    """Replace a grid sample for each level of a pyramid, their products with weights, and the sum of these.

    >>> maps = [relay.var(f"map{i}", shape=(2, 8, side, side)) for i, side in enumerate((6, 3))]
    >>> grids = [relay.var(f"grid{i}", shape=(2, 2, 5, 4)) for i in range(2)]
    >>> weights = relay.var("weights", shape=(2, 1, 5, 8))
    >>> samples = [relay.image.grid_sample(*each, layout="NCHW") for each in zip(maps, grids)]
    >>> y = relay.sum(relay.concatenate(samples, 3) * weights, axis=3)
    >>> mod = tvm.IRModule.from_expr(relay.Function([*maps, *grids, weights], y))
    >>> print(tvm_passes.as_text(tvm_passes.RestoreDeformableAttention()(mod)))
    def @main(%map0: Tensor[(2, 8, 6, 6), float32], %map1: Tensor[(2, 8, 3, 3), float32],
        %grid0: Tensor[(2, 2, 5, 4), float32], %grid1: Tensor[(2, 2, 5, 4), float32],
        %weights: Tensor[(2, 1, 5, 8), float32]) -> Tensor[(2, 8, 5), float32] {
      %0 = reshape(%map0, newshape=[2, 8, 36]);
      %1 = reshape(%map1, newshape=[2, 8, 9]);
      %2 = (%0, %1);
      %3 = concatenate(%2, axis=2);
      %4 = transpose(%grid0, axes=[0, 2, 3, 1]);
      %5 = transpose(%grid1, axes=[0, 2, 3, 1]);
      %6 = (%4, %5);
      %7 = transpose(%3, axes=[0, 2, 1]);
      %8 = concatenate(%6, axis=2);
      %9 = squeeze(%weights, axis=[1]);
      %10 = topi_ext.deformable_attention(%7, %8, %9, align_corners=1, levels=[[6, 6, 4],
          [3, 3, 4]]);
      transpose(%10, axes=[0, 2, 1])
    }
    """

    rules = (SumOfSamples,)


class _Plan(NamedTuple):
    weights: relay.Expr
    samples: list[relay.Call]  # of each level


def _factors(
    product: relay.Call,
) -> tuple[relay.Expr, relay.Expr, list[relay.Expr], list[relay.Call]] | None:
    """The joined samples, the weights, what joins the samples, and these; None if there are no samples."""
    for joined, weights in either_way(product):
        inner, between = _before_reshaping(joined)
        parts = [inner]
        if _joins_points(inner):
            fields, reshaped = zip(*map(_before_reshaping, inner.args[0].fields))
            parts, between = list(fields), [*between, inner, inner.args[0], *chain(*reshaped)]
        if all(op_name(part) == "image.grid_sample" for part in parts):
            return joined, weights, between, parts
    return None


def _before_reshaping(expr: relay.Expr) -> tuple[relay.Expr, list[relay.Expr]]:
    """The tensor before it is reshaped, and the reshaping."""
    between = []
    while op_name(expr) in RESHAPING:
        between.append(expr)
        expr = expr.args[0]
    return expr, between


def _joins_points(expr: relay.Expr) -> bool:
    """Whether the points of all levels get side by side, those of each level together."""
    name = op_name(expr)
    if name not in ("concatenate", "stack") or not isinstance(expr.args[0], relay.Tuple):
        return False
    rank = len(expr.checked_type.shape)
    if int(expr.attrs.axis) % max(rank, 1) != 3:
        return False
    parts = map(static_shape, expr.args[0].fields)
    if name == "stack":
        return rank == 5
    return rank == 4 or (rank == 5 and all(part is not None and part[3] == 1 for part in parts))


def _is_plain(sample: relay.Call) -> bool:
    attrs = sample.attrs
    how = str(attrs.method), str(attrs.layout), str(attrs.padding_mode)
    return how == ("bilinear", "NCHW", "zeros")
