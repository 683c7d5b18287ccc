"""Find out where in a model TVM's compiler fails, which TVM does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm
from tvm import relay
from tvm.ir import structural_hash

from ..engine.expressions import location, op_name
from ..engine.graph import Graph, relay_functions
from .compile_failure import CompileFailure, failure_of

Build = Callable[[tvm.IRModule], object]


def explained(error: Exception, mod: tvm.IRModule, target: tvm.target.Target, build: Build) -> CompileFailure:
    """The error for a typed module that does not build: builds its kernels one by one to find the culprit."""
    for kernel in _kernels(mod, target):
        try:
            build(_alone(kernel))
        except Exception as reason:  # TVM raises many types
            calls = [node for node in Graph(kernel.body).nodes if op_name(node)]
            return failure_of(_named(calls), target, reason)
    return failure_of("the model", target, error)


def _kernels(mod: tvm.IRModule, target: tvm.target.Target) -> Iterator[relay.Function]:
    """The functions that TVM compiles to one kernel each, without duplicates.

    Norms, which it writes out first, cannot be fused.
    """
    seen, typed = set(), relay.transform.InferType()
    with target:
        for step in (typed, relay.transform.SimplifyInference(), typed, relay.transform.FuseOps(), typed):
            mod = step(mod)
    for function in relay_functions(mod).values():
        for node in Graph(function).nodes:
            is_kernel = isinstance(node, relay.Function) and node.attrs and "Primitive" in node.attrs
            key = structural_hash(node) if is_kernel else None
            if is_kernel and key not in seen:
                seen.add(key)
                yield node


def _alone(kernel: relay.Function) -> tvm.IRModule:
    """A module of one kernel, which TVM fuses as it did before."""
    params: list[relay.Var] = []

    def of_type(type_: tvm.ir.Type) -> relay.Expr:
        if isinstance(type_, tvm.ir.TupleType):  # which TVM takes between kernels, but not as an input
            return relay.Tuple([of_type(field) for field in type_.fields])
        params.append(relay.var(f"p{len(params)}", type_))
        return params[-1]

    body = relay.bind(kernel.body, {param: of_type(param.checked_type) for param in kernel.params})
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(params, body)))


def _named(calls: list[relay.Call]) -> str:
    """The operators of a kernel, the type of its result, and its place in the model."""
    operators = " with ".join(dict.fromkeys(str(op_name(call)) for call in calls))
    places = ", ".join(dict.fromkeys(filter(None, map(location, calls))))
    result = calls[-1].checked_type
    if isinstance(result, relay.TensorType):
        operators += f", of type {result.dtype} ({', '.join(map(str, result.shape))})"
    return operators + (f", at {places}" if places else "")
