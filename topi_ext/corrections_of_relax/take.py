"""Elements by their indices: the first or the last one of those that are out of range.

TVM reads whatever is there, and warns of it each time that it compiles one.
"""

from __future__ import annotations

from tvm import relax, topi

from .legalize import legalize


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if str(call.attrs.mode) != "fast":
        return stock(builder, call)
    return builder.call_te(topi.take, *call.args, call.attrs.axis, mode="clip")


stock = legalize("take", _take)
