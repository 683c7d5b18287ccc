"""Sorting of elements of any type.

NaN has no place in the order of TVM's sorts, by which a row with one is not sorted; and they know few types
of integers. Here all elements are sorted by integers of 32 or 64 bits of the same order, in which NaN is
greatest.
"""

from __future__ import annotations

from typing import Any

from .._tvm import dtype_of, te, tir, topi
from .._types import IntExpr
from .order import HELD_AS, ordered_bits

# Whose order that of the bits is, but for the first one.
WITHOUT_SIGN = {"uint32": "int32", "uint64": "int64"}
SORTED_AS = {**dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32"), **WITHOUT_SIGN}


class Sorts:
    """The sorts of one of TVM's modules, by integers."""

    def __init__(self, stock: Any) -> None:
        self._sort, self._argsort, self._topk = stock.sort, stock.argsort, stock.topk

    def sort(self, data: te.Tensor, axis: int = -1, is_ascend: bool = True) -> te.Tensor:
        dtype = dtype_of(data)
        if "float" in dtype:
            return _taken(data, axis, self.argsort(data, axis=axis, is_ascend=is_ascend, dtype="int64"))
        return _elements(self._sort(_keys(data), axis, is_ascend), dtype)

    def argsort(self, data: te.Tensor, *args: Any, **options: Any) -> te.Tensor:
        return self._argsort(_keys(data), *args, **options)

    def topk(
        self,
        data: te.Tensor,
        k: IntExpr | te.Tensor = 1,
        axis: int = -1,
        ret_type: str = "both",
        is_ascend: bool = False,
        dtype: str = "int64",
    ) -> list[te.Tensor] | te.Tensor:
        is_float = "float" in dtype_of(data)
        asked = "indices" if is_float else ret_type
        made = self._topk(_keys(data), k, axis, asked, is_ascend, dtype)
        found = [made] if isinstance(made, te.Tensor) else list(made)
        if ret_type == "indices":
            return found[0]
        if is_float:
            values, indices = _taken(data, axis, found[0]), found
        else:
            keys, *indices = found
            values = _elements(keys, dtype_of(data))
        return [values, *indices] if ret_type == "both" else values


def _keys(data: te.Tensor) -> te.Tensor:
    """Integers in the order of the elements, of a type that TVM sorts."""
    dtype = dtype_of(data)
    if "float" in dtype:
        held = HELD_AS.get(dtype, dtype)
        return te.compute(data.shape, lambda *at: ordered_bits(data(*at).astype(held)), "keys")
    held = SORTED_AS.get(dtype, dtype)
    if held == dtype:
        return data
    turned = tir.min_value(held) if dtype in WITHOUT_SIGN else tir.const(0, held)
    return te.compute(data.shape, lambda *at: data(*at).astype(held) ^ turned, "keys", topi.tag.ELEMWISE)


def _elements(keys: te.Tensor, dtype: str) -> te.Tensor:
    """The integers, or truths, that `_keys` made these of."""
    if dtype not in SORTED_AS:
        return keys
    turned = tir.min_value(keys.dtype) if dtype in WITHOUT_SIGN else tir.const(0, keys.dtype)
    return te.compute(
        keys.shape, lambda *at: (keys(*at) ^ turned).astype(dtype), "elements", topi.tag.ELEMWISE
    )


def _taken(data: te.Tensor, axis: int, indices: te.Tensor) -> te.Tensor:
    axis %= len(data.shape)
    return te.compute(
        indices.shape,
        lambda *at: data(*at[:axis], indices(*at), *at[axis + 1 :]),
        "sorted",
        topi.tag.INJECTIVE,
    )


_on_cpus = Sorts(topi)
sort, argsort, topk = _on_cpus.sort, _on_cpus.argsort, _on_cpus.topk
