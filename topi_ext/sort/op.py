"""The operator `topi_ext.topk`, for graphs of Relax; Relay's own topk gets these kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tvm

from .. import _register
from .._tvm import Attrs, Expr, TensorType, TupleType, Type, call, te
from .._whole import whole
from . import cuda

NAME = "topi_ext.topk"


def topk(data: Expr, k: int, *, axis: int, largest: bool, dtype: str) -> Expr:
    """The first `k` of each row, sorted, and their indices, of type `dtype`.

    Of equal numbers, the first one comes first; NaN is greater than any other.
    """
    return call(
        NAME, [data], k=whole("topk: k", k), axis=whole("topk: axis", axis), largest=int(largest), dtype=dtype
    )


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TupleType | None:
    (data,) = types
    if not isinstance(data, TensorType):
        return None
    shape = list(data.shape)
    shape[int(attrs["axis"])] = int(attrs["k"])
    return TupleType([TensorType(shape, data.dtype), TensorType(shape, str(attrs["dtype"]))])


def _kernels_for(_attrs: Attrs, _inputs: Sequence[te.Tensor], target: tvm.target.Target) -> ModuleType:
    if target.kind.name != "cuda":
        _register.refuse(NAME, "there are kernels for CUDA only")
    return cuda


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    found: Any = kernels.topk(
        inputs[0], int(attrs["k"]), int(attrs["axis"]), "both", not int(attrs["largest"]), str(attrs["dtype"])
    )
    return list(found)


_register.register(
    NAME,
    "The first numbers of each row, sorted.",
    {"data": "Of any shape."},
    _type_relation,
    None,
    _kernels_for,
    _compute,
)
