"""Restore projective warps of images where a graph divides a grid of points by their third coordinate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import topi_ext
from topi_ext.warp_affine.reference import SMALLEST_DIVISOR

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

from ..analysis.evaluate import NotFolded, move, value_of
from ..engine.expressions import known_shape, op_name, scalar, static_shape
from ..engine.rule import Match, Refusal, Rule, RulePass
from .points import BORDERS, axes_of, from_pixels, refusal_of_sample

MOVES = ("broadcast_to", "copy", "expand_dims", "repeat", "reshape", "squeeze", "tile", "transpose")


class SampledAtProjectiveGrid(Rule):
    """Replace `grid_sample(image, (x, y) / z)` of `(x, y, z) = H @ point` with `topi_ext.warp_perspective`.

    Why legal: the points are those of all pixels of the result, at x and y from -1 to 1, which is an affine
    map of pixels, and with H one matrix. Which elements of H multiply each point is followed through whatever
    repeats and moves them. Where z is almost 0, both take 1 instead. The graph adds 1e-8 to other z, which
    is less than the rounding of z in float32. Bilinear weights and the pixels around an image are those of
    the operator. It computes coordinates in float64, so results differ by rounding; next to the horizon,
    where z is nothing but rounding, the graph's own result is that of chance.
    """

    image, points, matrices, least = wildcard(), wildcard(), wildcard(), is_constant()
    product = is_op("nn.batch_matmul")(points, matrices)
    z, xy = is_op("strided_slice")(product), is_op("strided_slice")(product)
    inverse, ones = wildcard(), wildcard()
    scale = is_op("where")(is_op("greater")(is_op("abs")(z), least), inverse, ones)
    grid = is_op("reshape")(is_op("multiply")(scale, xy))
    moved = is_op("transpose")(grid)
    pattern = is_op("image.grid_sample")(image, moved)

    def plan(self, match: Match) -> _Plan | Refusal:
        sample, product = match.root.attrs, match.product
        refusal = refusal_of_sample(match.root, match.grid, [match.points, match.matrices])
        if refusal:
            return refusal
        batch, _, height, width = known_shape(match.root)
        if not (_is_columns(match.z, product, [2]) and _is_columns(match.xy, product, [0, 1])):
            return Refusal("x and y are not divided by the third coordinate")
        if not (_is_inverse(match.inverse, match.z) and _is_one(match.ones) and _is_least(match.least)):
            return Refusal(f"the divisor is not z, or 1 where z is within {SMALLEST_DIVISOR} of 0")
        if product.attrs.transpose_a:
            return Refusal("the matrix is not multiplied with each point")
        points = value_of(match.points)
        groups, each, _ = known_shape(product)
        if points is None or groups % batch or groups * each != batch * height * width:
            return Refusal("the points are not constants")
        points = np.broadcast_to(points, (groups, each, 3)).reshape(batch, height * width, 3)
        found_axes = {axes_of(image, height, width) for image in points[:, None]}
        axes = found_axes.pop()
        if found_axes or axes is None:
            return Refusal("the points are not those of all pixels, in order")
        found = _elements(match.matrices, product.attrs.transpose_b)
        if found is None:
            return Refusal("the matrices are not 3 by 3")
        base, places = found
        places = np.broadcast_to(places, (groups, 3, 3)).reshape(batch, groups // batch, 3, 3)
        if (places != places[:, :1]).any():
            return Refusal("there is not one matrix for each image")
        border = BORDERS[str(sample.padding_mode), bool(sample.align_corners)]
        return _Plan(from_pixels(*axes), base, places[:, 0], border)

    def rewrite(self, match: Match, plan: _Plan) -> relay.Expr:
        flat = relay.reshape(plan.base, [-1])
        matrix = relay.cast(relay.take(flat, relay.const(plan.places.astype("int32"))), "float64")
        per_pixel = relay.const(plan.from_pixels.T[None, None], "float64")
        matrix = relay.sum(relay.expand_dims(matrix, 2) * per_pixel, axis=3)  # their product
        return topi_ext.warp_perspective(
            match.image,
            matrix,
            known_shape(match.root)[2:],
            units="corners" if match.root.attrs.align_corners else "centers",
            border_mode=plan.border,
        )


class _Plan(NamedTuple):
    from_pixels: np.ndarray
    base: relay.Expr
    places: np.ndarray  # (N, 3, 3), of the elements of each matrix in `base`
    border: str


def _is_columns(part: relay.Call, product: relay.Call, columns: list[int]) -> bool:
    """Whether a slice takes these columns of all points."""
    groups, each, _ = known_shape(product)
    if static_shape(part) != (groups, each, len(columns)) or any(int(by) != 1 for by in part.attrs.strides):
        return False
    numbered = np.broadcast_to(np.arange(3), (groups, each, 3))
    try:
        return move(part, part.checked_type, [numbered])[0, 0].tolist() == columns
    except NotFolded:
        return False


def _is_inverse(expr: relay.Expr, z: relay.Expr) -> bool:
    """Whether it is 1 / z, or 1 / (z + 1e-8), perhaps times 1."""
    while op_name(expr) == "multiply" and 1 in map(scalar, expr.args):
        expr = expr.args[0] if scalar(expr.args[1]) == 1 else expr.args[1]
    if op_name(expr) != "divide" or scalar(expr.args[0]) != 1:
        return False
    divisor = expr.args[1]
    if op_name(divisor) == "add" and _is_least(divisor.args[1]):
        divisor = divisor.args[0]
    return divisor == z


def _is_least(expr: relay.Expr) -> bool:
    number = scalar(expr)
    return number is not None and np.float32(number) == np.float32(SMALLEST_DIVISOR)


def _is_one(expr: relay.Expr) -> bool:
    value = value_of(expr)
    return value is not None and bool((value == 1).all())


def _elements(matrices: relay.Expr, transposed: bool) -> tuple[relay.Expr, np.ndarray] | None:
    """A tensor, and the places in it of what multiplies each group of points, or all: (groups, 3, 3)."""
    moves = []
    while op_name(matrices) in MOVES:
        moves.append(matrices)
        matrices = matrices.args[0]
    shape = static_shape(matrices)
    if shape is None:
        return None
    places = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    try:
        for call in reversed(moves):
            places = move(call, call.checked_type, [places])
    except NotFolded:
        return None
    if places.ndim != 3 or places.shape[1:] != (3, 3):
        return None
    return matrices, places if transposed else places.swapaxes(1, 2)


class RestoreWarpPerspective(RulePass):
    """Replace a sample at points divided by a third coordinate with the operator that computes its points.

    >>> image, h = relay.var("image", shape=(1, 3, 8, 8)), relay.var("h", shape=(1, 3, 3))
    >>> x, y = np.meshgrid([-0.5, 0.5], [-0.5, 0.5])
    >>> points = relay.const(np.stack([x, y, x * 0 + 1], -1).reshape(1, 4, 3).astype("float32"))
    >>> product = relay.nn.batch_matmul(points, h)
    >>> xy, z = (relay.strided_slice(product, [0, 0, at], [1, 4, at + n]) for at, n in ((0, 2), (2, 1)))
    >>> least, ones = relay.const(1e-8), relay.const(np.ones((1, 4, 1), "float32"))
    >>> scale = relay.where(relay.abs(z) > least, relay.const(1.0) / (z + least), ones)
    >>> grid = relay.transpose(relay.reshape(scale * xy, (1, 2, 2, 2)), (0, 3, 1, 2))
    >>> mod = tvm.IRModule.from_expr(relay.image.grid_sample(image, grid, align_corners=False))
    >>> print("warp_perspective" in tvm_passes.as_text(tvm_passes.RestoreWarpPerspective()(mod)))
    True
    """

    rules = (SampledAtProjectiveGrid,)
