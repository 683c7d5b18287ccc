"""Determinants and inverses of matrices."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant
from ..._matrices import (
    LARGEST_SOLVED,
    MOST_COFACTORS,
    determinant_by_cofactors,
    inverse_by_cofactors,
    solved,
)
from ._common import Attrs, Converter, Inputs, Params, all_sizes_of, dtype_of


def det(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none."""
    *lead, _, size = all_sizes_of(inputs[0])
    if size > MOST_COFACTORS:
        raise NotImplementedError(f"determinants are of matrices of up to {MOST_COFACTORS} rows, not {size}")
    return determinant_by_cofactors(inputs[0], lead, size, dtype_of(inputs[0]))


def inverse(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none. A matrix that has no inverse gives infinity or NaN, no error."""
    data = inputs[0]
    *lead, _, size = all_sizes_of(data)
    if size <= MOST_COFACTORS:
        return inverse_by_cofactors(data, lead, size, dtype_of(data))
    if size > LARGEST_SOLVED:
        raise NotImplementedError(f"inverses are of matrices of up to {LARGEST_SOLVED} rows, not {size}")
    unit = constant(np.broadcast_to(np.eye(size), (*lead, size, size)).copy())
    equations = relay.concatenate([relay.cast(data, "float64"), unit], -1)
    return relay.cast(solved(equations, size, 2 * size), dtype_of(data))


CONVERTERS: dict[str, Converter] = {"Det": det, "Inverse": inverse}
