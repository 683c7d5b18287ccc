"""The operators of Relax, for what is written for both TVMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm import relax

from ._onnx.node import constant, dtype_of

op = relax.op


class OfRelax:
    """See `_deform_conv2d.Operators`."""

    add, multiply = staticmethod(op.add), staticmethod(op.multiply)
    transpose = staticmethod(op.permute_dims)

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self.builder = builder

    def reshape(self, data: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        return op.reshape(self.builder.emit(data), shape)

    def constant(self, array: Any) -> relax.Expr:
        return constant(np.asarray(array, "float32"))

    def ones(self, shape: Sequence[int]) -> relax.Expr:
        return op.ones(shape, "float32")

    def in_float32(self, data: relax.Expr) -> relax.Expr:
        return op.astype(data, "float32")

    def reversed(self, data: relax.Expr) -> relax.Expr:
        return op.flip(data, -1)

    def dense(self, left: relax.Expr, right: relax.Expr) -> relax.Expr:
        return self.batch_matmul(left, right)

    def batch_matmul(self, left: relax.Expr, right: relax.Expr) -> relax.Expr:
        """Sums are float32, as in torch and ONNX Runtime."""
        left, right = self.builder.emit(left), self.builder.emit(right)
        rank = left.ty.ndim
        columns = op.permute_dims(right, [*range(rank - 2), rank - 1, rank - 2])
        return op.astype(op.matmul(left, columns, out_dtype="float32"), dtype_of(left))
