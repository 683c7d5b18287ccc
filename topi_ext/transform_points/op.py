"""The Relay operator `topi_ext.transform_points`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, const, convert, script, te, tir

if TYPE_CHECKING:
    from .._types import const_range, int64, output_tensor

NAME = "topi_ext.transform_points"
FLOATS, OFFSETS, DIMENSIONS = ("float32", "float64"), ("int32", "int64"), (2, 3)
ARGUMENTS = {
    "points": "(N, F) or (B, N, F), F 2 or 3; float32 or float64.",
    "matrix": "(F + 1, F + 1) or (B, F + 1, F + 1); float32 or float64.",
    "offsets": "(B + 1,), int32 or int64; not looked at where points are not ragged.",
}


def transform_points(points: Expr, matrix: Expr, offsets: Expr | None = None) -> Expr:
    """Transform points by affine matrices: `matrix[:F, :F] @ point + matrix[:F, F]`.

    Parameters
    ----------
    points : Expr
        (N, F) or (B, N, F), float32 or float64; F is 2 or 3. N and B may be known only at run time.
    matrix : Expr
        (F + 1, F + 1) for all points, or (B, F + 1, F + 1), one per sample; float32 or float64. The last row
        is not used.
    offsets : Expr, optional
        (B + 1,), int32 or int64, for ragged samples: sample b has the points from `offsets[b]` up to
        `offsets[b + 1]` of (N, F).

    Returns
    -------
    points : Expr
        Of the shape and type of `points`.

    Convention
    ----------
    - As l5kit's `transform_points`. Sums are computed in float64 and rounded once.
    - Points before the first offset belong to the first sample, those from the last one on to the last.

    >>> from topi_ext.transform_points import reference
    >>> turn_and_shift = np.float32([[0, -1, 10], [1, 0, 20], [0, 0, 1]])
    >>> print(reference.transform_points(np.float32([[1, 2]]), turn_and_shift))
    [[ 8. 21.]]
    """
    is_ragged = offsets is not None
    return call(NAME, [points, matrix, offsets if is_ragged else const(0)], is_ragged=int(is_ragged))


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    points, matrix, offsets = types
    is_ragged = bool(attrs["is_ragged"])
    _check("points", points, FLOATS)
    _check("matrix", matrix, FLOATS)
    dimensions = (known(points.shape[-1]) or 0) if points.shape else 0
    if dimensions not in DIMENSIONS or len(points.shape) not in ((2,) if is_ragged else (2, 3)):
        shapes = "(N, F)" if is_ragged else "(N, F) or (B, N, F)"
        _refuse(f"points must have the shape {shapes}, with F 2 or 3, not {points.shape}")
    ranks = (3,) if is_ragged else (2, 3) if len(points.shape) == 3 else (2,)
    sides = {known(side) for side in matrix.shape[-2:]}
    if len(matrix.shape) not in ranks or not sides <= {dimensions + 1, None}:
        side = dimensions + 1
        shapes = " or ".join(f"({', '.join(['B'] * (rank - 2) + [str(side)] * 2)})" for rank in ranks)
        _refuse(f"matrix must have the shape {shapes}, not {matrix.shape}")
    if is_ragged:
        _check("offsets", offsets, OFFSETS)
        if len(offsets.shape) != 1:
            _refuse(f"offsets must have the shape (B + 1,), not {offsets.shape}")
        samples, expected = known(matrix.shape[0]), known(offsets.shape[0])
        if samples == 0 or (samples is not None and expected not in (samples + 1, None)):
            _refuse(f"there must be one more offset than matrices, at least one: {expected} for {samples}")
    elif len(matrix.shape) == 3:
        counts = known(points.shape[0]), known(matrix.shape[0])
        if None not in counts and counts[0] != counts[1]:
            _refuse(f"there are points of {counts[0]} samples, but matrices of {counts[1]}")
    return points


def _check(name: str, type_: TensorType, dtypes: Sequence[str]) -> None:
    if type_.dtype not in dtypes:
        _refuse(f"{name} must be of type {' or '.join(dtypes)}, not {type_.dtype}")


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


@script
@no_type_check
def _shapes(points, matrix, offsets, points_rank, matrix_rank, is_ragged):
    moved = output_tensor((points_rank,), "int64")
    for i in const_range(points_rank):
        moved[i] = points[i]
    side = points[points_rank - 1] + int64(1)
    assert matrix[matrix_rank - 2] == side, "topi_ext.transform_points: matrices must have F + 1 rows"
    assert matrix[matrix_rank - 1] == side, "topi_ext.transform_points: matrices must have F + 1 columns"
    if is_ragged:
        assert matrix[0] > int64(0), "topi_ext.transform_points: there must be a matrix"
        assert offsets[0] == matrix[0] + int64(1), (
            "topi_ext.transform_points: there must be one more offset than matrices"
        )
    elif matrix_rank == 3:
        assert matrix[0] == points[0], (
            "topi_ext.transform_points: points and matrices differ in their number of samples"
        )
    return moved


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    ranks = [int(shape.shape[0]) for shape in inputs[:2]]
    return [_shapes(*inputs, *map(convert, [*ranks, int(attrs["is_ragged"])]))]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    points, matrix, offsets = inputs
    return [kernels.transform_points(points, matrix, offsets if attrs["is_ragged"] else None)]


_register.register(
    NAME,
    "Transform points by affine matrices.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
