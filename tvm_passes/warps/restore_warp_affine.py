"""Restore affine warps of images where a graph computes a grid of points and samples the image there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import topi_ext

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

from ..engine.expressions import known_shape
from ..engine.rule import Match, Refusal, Rule, RulePass
from .points import BORDERS, axes_of, from_pixels, refusal_of_sample


class SampledAtAffineGrid(Rule):
    """Replace `grid_sample(image, affine_grid(theta))` with `topi_ext.warp_affine`.

    Why legal: the grid is `theta @ (x, y, 1)` for the pixels of the result, at x and y from -1 to 1, and the
    points that it gives are scaled to pixels of the image. Both scales are affine, and with theta they are
    one matrix. Bilinear weights and the pixels around an image are those of the operator. It computes
    coordinates in float64, so results differ by rounding.
    """

    image, theta, points = wildcard(), wildcard(), is_constant()
    product = is_op("nn.batch_matmul")(points, theta)
    grid = is_op("reshape")(product)
    moved = is_op("transpose")(grid)
    pattern = is_op("image.grid_sample")(image, moved)

    def plan(self, match: Match) -> _Plan | Refusal:
        sample, product = match.root.attrs, match.product.attrs
        refusal = refusal_of_sample(match.root, match.grid, [match.theta])
        if refusal:
            return refusal
        if product.transpose_a or not product.transpose_b:
            return Refusal("the matrix is not multiplied with each point")
        batch, _, height, width = known_shape(match.root)
        if known_shape(match.theta) != (batch, 2, 3):
            return Refusal("there is not one matrix of 2 by 3 for each image")
        axes = axes_of(match.points.data.numpy(), height, width)
        if axes is None:
            return Refusal("the points are not those of all pixels, in order")
        return _Plan(from_pixels(*axes), BORDERS[str(sample.padding_mode), bool(sample.align_corners)])

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        _, _, height, width = known_shape(match.image)
        theta = relay.expand_dims(relay.cast(match.theta, "float64"), 2)  # (N, 2, 1, 3)
        matrix = relay.sum(theta * relay.const(plan.from_pixels.T[None, None], "float64"), axis=3)
        sizes = np.array([width, height], "float64")
        corners = bool(match.root.attrs.align_corners)
        scale = np.reshape((sizes - corners) / 2, (1, 2, 1))
        offset = np.zeros((1, 2, 3))
        offset[0, :, 2] = (sizes - 1) / 2
        matrix = matrix * relay.const(scale, "float64") + relay.const(offset, "float64")
        size = known_shape(match.root)[2:]
        return topi_ext.warp_affine(
            match.image, matrix, size, inverse_map=True, border_mode=plan.border, layout="NCHW"
        )


class _Plan(NamedTuple):
    from_pixels: np.ndarray
    border: str


class RestoreWarpAffine(RulePass):
    """Replace a sample of an image at an affine grid of points with the operator that computes its points.

    >>> image, theta = relay.var("image", shape=(1, 3, 8, 8)), relay.var("theta", shape=(1, 2, 3))
    >>> x, y = np.meshgrid([-0.5, 0.5], [-0.5, 0.5])
    >>> points = relay.const(np.stack([x, y, x * 0 + 1], -1).reshape(1, 4, 3).astype("float32"))
    >>> grid = relay.reshape(relay.nn.batch_matmul(points, theta), (1, 2, 2, 2))
    >>> y = relay.image.grid_sample(image, relay.transpose(grid, (0, 3, 1, 2)), align_corners=False)
    >>> mod = tvm.IRModule.from_expr(relay.Function([image, theta], y))
    >>> print("warp_affine" in tvm_passes.as_text(tvm_passes.RestoreWarpAffine()(mod)))
    True
    """

    rules = (SampledAtAffineGrid,)
