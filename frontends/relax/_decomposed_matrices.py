"""Writes operators of torch on small matrices, and distances of points, by others, as `_decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ImportFailure

aten = torch.ops.aten
Call = Callable[..., Any]
MOST_ROWS = 8  # of a matrix whose elimination is written out; cameras and homographies have 3 or 4


def decompositions() -> dict[Any, Call]:
    """By operator, what writes it by others."""
    return {
        aten._cdist_forward.default: _distances,
        aten._linalg_det.default: _determinant,
        aten._linalg_solve_ex.default: _solve,
        aten.hypot.default: _hypot,
        aten.linalg_inv_ex.default: _inverse,
    }


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """Without the overflow of a square."""
    larger, smaller = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    ratio = torch.where(larger == smaller, torch.sign(larger), smaller / larger)  # of zeros, and infinities
    return torch.where(torch.isinf(x) | torch.isinf(y), torch.inf, larger * (1 + ratio * ratio).sqrt())


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    """Of many points by a product of matrices, as in torch."""
    is_many = max(x.shape[-2], y.shape[-2]) > 25
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and is_many)):
        return aten._euclidean_dist(x, y)
    return torch.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _inverse(matrix: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)
    inverse, _ = _eliminated(matrix, unit)
    return inverse, matrix.new_zeros(matrix.shape[:-2], dtype=torch.int32)


def _determinant(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The decomposition, which only its gradient reads, is NaN."""
    _, determinant = _eliminated(matrix, matrix[..., :0])
    pivots = matrix.new_zeros(matrix.shape[:-1], dtype=torch.int32)
    return determinant, torch.full_like(matrix, torch.nan).mT.contiguous().mT, pivots


def _solve(
    matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The decomposition, which only its gradient reads, is NaN."""
    is_vector = right.dim() == 1 or right.shape == matrix.shape[:-1]
    columns = right[..., None] if is_vector else right
    batch = torch.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2])
    matrix, columns = (each.expand(*batch, *each.shape[-2:]) for each in (matrix, columns))
    found = _eliminated(matrix, columns)[0] if left else _eliminated(matrix.mT, columns.mT)[0].mT
    decomposed = torch.full_like(matrix, torch.nan).mT.contiguous().mT
    pivots, info = (matrix.new_zeros(matrix.shape[:end], dtype=torch.int32) for end in (-1, -2))
    return found[..., 0] if is_vector else found, decomposed, pivots, info


def _eliminated(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The solutions and the determinant, in float64, by the largest element of each column."""
    count, dtype = matrix.shape[-1], matrix.dtype
    if count > MOST_ROWS or not dtype.is_floating_point:
        raise ImportFailure(
            f"Relax has no inverse, solutions or determinant of {dtype} matrices of {count} rows, only of "
            f"floats of up to {MOST_ROWS}: leave it to torch, before or behind the network"
        )
    rows = torch.cat([matrix, right], -1).double()
    at = torch.arange(count, device=matrix.device)[:, None]
    determinant = rows.new_ones(matrix.shape[:-2])
    for column in range(count):
        place = rows[..., column:, column].abs().argmax(-1)[..., None, None] + column
        chosen = (at == place).to(rows.dtype)
        pivot = (rows * chosen).sum(-2, keepdim=True)
        rows = torch.where(at == place, rows[..., column : column + 1, :], rows)
        scale = pivot[..., column : column + 1]
        determinant = determinant * torch.where(place == column, scale, -scale)[..., 0, 0]
        if not right.shape[-1]:  # a determinant of 0 needs no more rows; solutions are NaN
            scale = torch.where(scale == 0, 1.0, scale)
        row = pivot / scale
        rows = torch.where(at == column, row, rows - rows[..., column : column + 1] * row)
    return rows[..., count:].to(dtype), determinant.to(dtype)
