"""The Relay operator `topi_ext.deformable_attention`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, script, te, tir
from .._types import IntExpr
from .._whole import whole
from .kernel import Level

if TYPE_CHECKING:
    from .._types import output_tensor

NAME = "topi_ext.deformable_attention"
FLOATS = ("float32", "float16")
ARGUMENTS = {
    "value": "(N, S, C), float32 or float16.",
    "points": "(N, Q, K, 2): x, y; float32 or float16.",
    "weights": "(N, Q, K), float32 or float16.",
}


def deformable_attention(
    value: Expr,
    points: Expr,
    weights: Expr,
    *,
    levels: Sequence[Sequence[int]],
    align_corners: bool = False,
) -> Expr:
    """Multi-scale deformable attention: the weighted sum of what each query reads at its points.

    Parameters
    ----------
    value : Expr
        (N, S, C), float32 or float16: the pixels of all levels, one level after the other, each row by row.
        For several heads, N is the number of images times that of heads. N may be known only at run time.
    points : Expr
        (N, Q, K, 2), float32 or float16: the points x, y of each query, those of the first level first.
        -1 and 1 are the borders of the map. Q may be known only at run time.
    weights : Expr
        (N, Q, K), float32 or float16.
    levels : sequence of (int, int, int)
        Of each level its height, its width, and how many of the points are on it; S and K are their sums.
    align_corners : bool
        Whether -1 and 1 are the centres of the outermost pixels, and not their outer edges.

    Returns
    -------
    result : Expr
        (N, Q, C), of the type of `value`.

    Convention
    ----------
    - As Deformable DETR: a point is read as by torch's `grid_sample`, bilinear, with zeros around the map.
    - Places, weights and sums are float32 whatever the input.
    - A point at NaN or infinity reads nothing, and neither do pixels outside the map, whatever the weight.

    >>> from topi_ext.deformable_attention import reference
    >>> value = np.float32([[[1], [2], [3], [4], [10]]])  # levels of 2 by 2 pixels and of one pixel
    >>> points, weights = np.float32([[[[0, 0], [0, 0]]]]), np.float32([[[1, 0.5]]])
    >>> levels = [(2, 2, 1), (1, 1, 1)]
    >>> print(reference.deformable_attention(value, points, weights, levels=levels))
    [[[7.5]]]
    """
    levels = [[whole("deformable_attention: a level", number) for number in level] for level in levels]
    if not levels or any(len(level) != 3 or min(level) < 1 for level in levels):
        raise ValueError(
            "deformable_attention: levels must be (height, width, points) of each level, all at least 1, "
            f"not {levels}"
        )
    return call(NAME, [value, points, weights], levels=levels, align_corners=int(align_corners))


def _levels(attrs: Attrs) -> list[Level]:
    return [Level(*map(int, level)) for level in attrs["levels"]]


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    levels = _levels(attrs)
    pixels, points = (
        sum(level.height * level.width for level in levels),
        sum(level.points for level in levels),
    )
    shapes = {"value": f"(N, {pixels}, C)", "points": f"(N, Q, {points}, 2)", "weights": f"(N, Q, {points})"}
    fixed = {"value": {1: pixels}, "points": {2: points, 3: 2}, "weights": {2: points}}
    for (name, shape), type_ in zip(shapes.items(), types):
        if type_.dtype not in FLOATS:
            _refuse(f"{name} must be of type {' or '.join(FLOATS)}, not {type_.dtype}")
        extents = list(map(known, type_.shape))
        if len(extents) != shape.count(",") + 1 or any(extents[axis] != n for axis, n in fixed[name].items()):
            _refuse(f"{name} must have the shape {shape} for these levels, not {type_.shape}")
    if not known(types[0].shape[2]):
        _refuse(f"value must have a number of channels that is known and above 0, not {types[0].shape}")
    items = _common("N", "value, points and weights", [type_.shape[0] for type_ in types])
    queries = _common("Q", "points and weights", [type_.shape[1] for type_ in types[1:]])
    return TensorType([items, queries, types[0].shape[2]], types[0].dtype)


def _common(axis: str, names: str, extents: Sequence[tir.PrimExpr]) -> IntExpr:
    numbers = {known(extent) for extent in extents} - {None}
    if len(numbers) > 1:
        _refuse(f"{names} must have the same {axis}, not {', '.join(map(str, extents))}")
    return numbers.pop() if numbers else extents[0]


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


@script
@no_type_check
def _shapes(value, points, weights):
    result = output_tensor((3,), "int64")
    assert value[0] == points[0], "topi_ext.deformable_attention: value and points must have the same N"
    assert points[0] == weights[0], "topi_ext.deformable_attention: points and weights must have the same N"
    assert points[1] == weights[1], "topi_ext.deformable_attention: points and weights must have the same Q"
    result[0] = points[0]
    result[1] = points[1]
    result[2] = value[2]
    return result


def _shape_function(_attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    return [_shapes(*inputs)]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    options = {"levels": _levels(attrs), "align_corners": bool(attrs["align_corners"])}
    return [kernels.deformable_attention(*inputs, **options)]


_register.register(
    NAME,
    "Multi-scale deformable attention: the weighted sum of what each query reads at its points.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
