"""What is given for the weights of a module: of a name that it does not know, TVM says nothing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..module_argument import check_has_main, check_module
from .arrays import Array, type_of
from .libraries import signature_of
from .tensor_type import TensorType

NAMED = 3  # of the names that are wrong, the others are counted


def checked(mod: Any, params: Any, caller: str) -> dict[str, Any]:
    """The weights by the names of parameters of `main`; raises with what to give instead.

    Names of no parameter are warned of, but no error: they may be those of weights that are bound already.
    """
    check_module(mod, caller)
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"{caller}: params must be a dict of arrays by name, not {type(params).__name__}")
    if not params:
        return {}
    check_has_main(mod, caller)
    types = signature_of(mod).inputs
    for name, array in params.items():
        _check(f"{caller}: params[{name!r}]", array, type_of(types[name]) if name in types else None)
    unknown = [name for name in params if name not in types]
    if unknown:
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        warnings.warn(
            f"{caller}: params has {', '.join(map(str, unknown[:NAMED]))}{more}, which main does not take: "
            "ignored. Give the second of what the importer returns, or nothing where weights are bound",
            stacklevel=3,
        )
    return {str(name): array for name, array in params.items() if name in types}


def _check(what: str, array: Any, wanted: TensorType | None) -> None:
    if not isinstance(array, (Array, np.ndarray)):
        raise TypeError(
            f"{what} must be an array of TVM or NumPy, not {type(array).__name__}: give the second of what "
            "the importer returns"
        )
    found = TensorType(tuple(array.shape), str(array.dtype))
    if wanted is not None and not (wanted.dtype == found.dtype and wanted.takes(found)):
        raise ValueError(f"{what} must be {wanted}, not {found}")
