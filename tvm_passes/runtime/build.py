"""From a module of Relay to a model, by the executor that suits it."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any

from topi_ext.quiet import quiet  # topi_ext comes before tvm

import tvm
from tvm import relay

from ..engine.graph import Graph, belongs_to_a_backend
from .executors import Library
from .failure import explained
from .model import Model

PLAIN = (relay.Var, relay.Constant, relay.Call, relay.Tuple, relay.TupleGetItem, relay.GlobalVar, tvm.ir.Op)


def compile(
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    params: dict[str, tvm.nd.NDArray] | None = None,
    *,
    device: str | tvm.runtime.Device | None = None,
    **options: Any,
) -> Model:
    """Compile a module, as passes left it, to a `Model`, at `opt_level=3` or in the pass context around.

    Parameters
    ----------
    mod : tvm.IRModule
        If all types in its `main` are static, and it has no control flow, it is for the graph executor, else
        for the virtual machine. Outputs are named by the function's attribute `output_names`.
    target : str or tvm.target.Target
        Such as "llvm" or "cuda": one kind of device.
    params : dict of str to tvm.nd.NDArray, optional
        The weights: parameters of `main`.
    device : str or tvm.runtime.Device, optional
        If it is not the first of the target's kind.
    options
        Those of `Model`: `cut`, `copy_outputs`, `cuda_graph`. `cut=True` goes by `padded_rows`, if `main` has
        that attribute.
    """
    target = tvm.target.Target(target)
    mod = relay.transform.InferType()(mod)
    main = mod["main"]
    attrs = dict(main.attrs.items()) if main.attrs else {}
    if options.get("cut") is True:
        options["cut"] = attrs.get("padded_rows", True)
    return Model(
        _library(mod, target, params),
        device or tvm.device(target.kind.name),
        output_names=attrs.get("output_names"),
        input_types={param.name_hint: param.checked_type for param in main.params},
        **options,
    )


def build_library(
    mod: tvm.IRModule, target: str | tvm.target.Target, params: dict[str, tvm.nd.NDArray] | None = None
) -> Library:
    """What `compile` makes a `Model` of, for `save`, or for a `Model` elsewhere: no device is needed here.

    Raises `CompileFailure` where TVM cannot compile the module for the target.
    """
    return _library(mod, target, params)


def _library(
    mod: tvm.IRModule, target: str | tvm.target.Target, params: dict[str, tvm.nd.NDArray] | None
) -> Library:
    mod = relay.transform.InferType()(mod)
    _check_parameters(mod["main"])
    target = tvm.target.Target(target)
    with quiet(), _at_level_3():
        _check_processor(target)
        try:
            return _built(mod, target, params)
        except Exception as error:  # TVM raises nearly any, and names no place in the model
            raise explained(error, mod, target, lambda kernel: _built(kernel, target)) from error


def _built(
    mod: tvm.IRModule, target: tvm.target.Target, params: dict[str, tvm.nd.NDArray] | None = None
) -> Library:
    build = relay.build if _is_static(mod) else relay.vm.compile
    return build(mod, target, params=params)


def _check_parameters(main: relay.Function) -> None:
    names = [param.name_hint for param in main.params]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"compile: main has two parameters named {twice}: give each a name of its own")
    for param in main.params:
        type_ = param.checked_type
        if not isinstance(type_, relay.TensorType):
            raise TypeError(f"compile: {param.name_hint} is to be a tensor, not of type {type_}")


def _check_processor(target: tvm.target.Target) -> None:
    """TVM writes to standard error, for each kernel, that it takes a generic one instead."""
    name = str(target.attrs.get("mcpu", ""))
    if target.kind.name == "llvm" and name and name not in _processors(target):
        warnings.warn(f"compile: LLVM knows no processor {name!r}: what it compiles is for any", stacklevel=4)


def _processors(target: tvm.target.Target) -> list[str]:
    """Those that LLVM knows, or the target's own where TVM cannot tell."""
    list_ = tvm.get_global_func("target.llvm_get_cpu_archlist", allow_missing=True)
    return [str(each) for each in (list_(target) if list_ else target.attrs["mcpu"])]


def _at_level_3() -> AbstractContextManager[Any]:
    """The pass context that the caller is in, or one like it of level 3."""
    around = tvm.transform.PassContext.current()
    if around.opt_level >= 3:
        return contextlib.nullcontext()
    settings = around.required_pass, around.disabled_pass, around.instruments, dict(around.config.items())
    return tvm.transform.PassContext(3, *settings)


def _is_static(mod: tvm.IRModule) -> bool:
    """Whether the graph executor can run a typed module."""
    functions = [function for function in mod.functions.values() if not belongs_to_a_backend(function)]
    if len(functions) > 1:
        return False
    graph = Graph(mod["main"])
    return not any(map(_is_dynamic, graph.nodes)) and all(
        isinstance(node, PLAIN) or node.same_as(graph.root) or belongs_to_a_backend(node)
        for node in graph.nodes
    )


def _is_dynamic(node: relay.Expr) -> bool:
    type_ = getattr(node, "_checked_type_", None)  # an operator has none
    return type_ is not None and bool(relay.ty.is_dynamic(type_))
