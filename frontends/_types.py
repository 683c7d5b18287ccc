"""Type inference that looks no further back than the types already known.

TVM's importer infers the type of an expression from its inputs up, again for every node that asks, so its
cost grows with the square of the graph. Here each expression keeps its type once it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Union

from tvm_passes.engine.expressions import type_of

import tvm
from tvm import relay
from tvm.ir import diagnostics
from tvm.relay.frontend import common

IntExpr = Union[int, tvm.tir.PrimExpr]  # a size: an int, if it is known


def infer_type(expr: relay.Expr, mod: tvm.IRModule | None = None) -> relay.Expr:
    """The expression, with its `checked_type` set."""
    if mod is not None or isinstance(expr, relay.Function):
        return common.infer_type(expr, mod)
    type_of(expr)
    return expr


def sizes(tensor_type: relay.TensorType) -> tuple[int | None, ...]:
    """The shape as a tuple of int, with None for a size that is known only at run time."""
    return tuple(int(dim) if isinstance(dim, tvm.tir.IntImm) else None for dim in tensor_type.shape)


@contextmanager
def type_errors_into(messages: list[str]) -> Iterator[None]:
    """Append to a list what TVM would print about ill-typed expressions."""
    renderer = "diagnostics.OverrideRenderer"
    users = tvm.get_global_func(renderer, allow_missing=True)

    def collect(context: diagnostics.DiagnosticContext) -> None:
        messages.extend(diagnostic.message for diagnostic in context.diagnostics)

    diagnostics.override_renderer(collect)
    try:
        yield
    finally:
        diagnostics.override_renderer(None)
        if users:
            tvm.register_func(renderer, users, override=True)
