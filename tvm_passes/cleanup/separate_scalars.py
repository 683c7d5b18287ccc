"""Give each call that reads a constant scalar one of its own."""

from __future__ import annotations

import tvm
from tvm import relay

from ..engine.expressions import location
from ..engine.graph import Graph
from ..engine.module_pass import Pass
from ..engine.report import Outcome, PassReport
from ..engine.typed import typed


class SeparateScalars(Pass):
    """Give each call that reads a constant scalar one of its own.

    Where two kernels read one, TVM's FuseOps makes it an argument of both, which is loaded, and by which they
    divide as by any number; a scalar that a kernel has for itself is written into its code.

    Why legal: a copy is the same number.

    >>> x, seven = relay.var("x", shape=(8,), dtype="int32"), relay.const(7, "int32")
    >>> y = relay.floor_divide(relay.annotation.stop_fusion(relay.floor_divide(x, seven)), seven)
    >>> mod = tvm_passes.SeparateScalars()(tvm.IRModule.from_expr(relay.Function([x], y)))
    >>> kernels = relay.transform.FuseOps()(relay.transform.InferType()(mod))
    >>> print(tvm_passes.as_text(kernels))
    def @main(%x: Tensor[(8), int32]) -> Tensor[(8), int32] {
      %0 = fn (%p01: Tensor[(8), int32], Primitive=1) -> Tensor[(8), int32] {
        floor_divide(%p01, 7)
      };
      %1 = %0(%x);
      %2 = fn (%p0: Tensor[(8), int32], Primitive=1) -> Tensor[(8), int32] {
        floor_divide(%p0, 7)
      };
      %2(%1)
    }
    """

    def __init__(self) -> None:
        super().__init__(_separated)


def _separated(mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    result = with_separate_scalars(mod, report)
    return mod if result.same_as(mod) else typed(result).module


def with_separate_scalars(mod: tvm.IRModule, report: PassReport | None = None) -> tvm.IRModule:
    result, graphs = typed(mod)
    copies = {name: _copies(graph) for name, graph in graphs.items()}
    for name in filter(copies.get, copies):
        result.update_func(name, graphs[name].rebuilt(copies[name]))
    if report is not None:
        calls = (call for each in copies.values() for call in each)
        report.rewrites += [Outcome("SeparateScalars", location(call)) for call in calls]
    return result if any(copies.values()) else mod


def _copies(graph: Graph) -> dict[relay.Expr, relay.Expr]:
    """{call: the same of scalars of its own}."""
    shared = {node for node in graph.nodes if _is_scalar(node) and len(graph.users(node)) > 1}
    readers = {user for scalar in shared for user in graph.users(scalar) if isinstance(user, relay.Call)}
    return {call: _with_copies(call, shared) for call in readers}


def _is_scalar(node: relay.Expr) -> bool:
    return isinstance(node, relay.Constant) and not node.data.shape


def _with_copies(call: relay.Call, shared: set[relay.Expr]) -> relay.Call:
    args = [relay.Constant(arg.data) if arg in shared else arg for arg in call.args]
    return relay.Call(call.op, args, call.attrs, call.type_args, call.span)
