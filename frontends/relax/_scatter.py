"""Elements that are written at places which data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm import relax

from ._onnx.node import constant, dtype_of, shape_of

op = relax.op


def scattered(
    emit: Callable[[relax.Expr], relax.Expr],
    data: relax.Expr,
    indices: Any,
    updates: relax.Expr,
    axis: int,
    reduction: str = "update",
) -> relax.Expr:
    """By whole positions where there are fewer indices than elements, which `scatter_elements` misplaces."""
    extents, shape = shape_of(indices), shape_of(data)
    if extents[:axis] + extents[axis + 1 :] == shape[:axis] + shape[axis + 1 :]:
        return op.scatter_elements(data, indices, updates, axis, reduction)
    places = [constant(each.astype(dtype_of(indices))) for each in np.indices(extents)]
    places[axis] = indices
    return op.scatter_nd(data, emit(op.stack(places, -1)), updates, reduction)
