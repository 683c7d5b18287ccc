"""A tensor of one value for LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .._tvm import IRBuilder, te, tir, view


def full_after(tensor: te.Tensor, shape: Sequence[int], dtype: str, value: float) -> te.Tensor:
    """The result of `topi_ext.full_after`."""

    def emit(_ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib, size = IRBuilder(), tir.const(prod(shape), "int64")
        elements = view(ib, outs[0], [size])
        with ib.for_range(tir.const(0, "int64"), size, "element", kind="parallel") as element:
            elements[element] = tir.const(value, dtype)
        return ib.get()

    return te.extern([shape], [tensor], emit, dtype=[dtype], name="full_after")
