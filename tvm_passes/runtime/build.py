"""Compile a Relay module to a model, for the executor that suits it."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any

from topi_ext.quiet import quiet  # topi_ext comes before tvm

import tvm
from tvm import relay

from ..analysis.static import is_static
from ..engine.graph import Graph, belongs_to_a_backend
from .concurrency import plan_memory
from .executors import Library
from .failure import explained
from .llvm_parts import on_all_cores
from .model import Model


def compile(
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    params: dict[str, tvm.nd.NDArray] | None = None,
    *,
    device: str | tvm.runtime.Device | None = None,
    **options: Any,
) -> Model:
    """Compile a module to a `Model`, in the current pass context or at `opt_level=3`.

    Parameters
    ----------
    mod : tvm.IRModule
        It runs on the graph executor if all types in `main` are static and there is no control flow, else on
        the virtual machine. Outputs are named by the function's attribute `output_names`.
    target : str or tvm.target.Target
        Such as "llvm" or "cuda"; a single kind of device.
    params : dict of str to tvm.nd.NDArray, optional
        The weights: parameters of `main`.
    device : str or tvm.runtime.Device, optional
        The device to run on, by default the first of the target's kind.
    options
        Those of `Model`: `cut`, `copy_outputs`, `copy_weights`, `cuda_graph`. `cut=True` uses the attribute
        `padded_rows` of `main`, if it has one.
    """
    target = tvm.target.Target(target)
    mod = relay.transform.InferType()(mod)
    main = mod["main"]
    attrs = dict(main.attrs.items()) if main.attrs else {}
    if options.get("cut") is True:
        options["cut"] = attrs.get("padded_rows", True)
    return Model(
        _library(mod, target, params, run_here=True),
        device or tvm.device(target.kind.name),
        output_names=attrs.get("output_names"),
        input_types={param.name_hint: param.checked_type for param in main.params},
        **options,
    )


def build_library(
    mod: tvm.IRModule, target: str | tvm.target.Target, params: dict[str, tvm.nd.NDArray] | None = None
) -> Library:
    """The library that `compile` makes a `Model` of, for `save` or a `Model` elsewhere; needs no device.

    Raises `CompileFailure` where TVM cannot compile the module for the target.
    """
    return _library(mod, target, params, run_here=False)


def _library(
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    params: dict[str, tvm.nd.NDArray] | None,
    run_here: bool,
) -> Library:
    mod = relay.transform.InferType()(mod)
    _check_parameters(mod["main"])
    target = tvm.target.Target(target)
    with quiet(), _at_level_3():
        _check_processor(target)
        is_for_cpu = target.kind.name == "llvm"
        try:
            with on_all_cores(run_here) if is_for_cpu else contextlib.nullcontext():
                return _built(mod, target, params)
        except Exception as error:  # TVM raises many types, and does not say where in the model
            raise explained(error, mod, target, lambda kernel: _built(kernel, target)) from error


def _built(
    mod: tvm.IRModule, target: tvm.target.Target, params: dict[str, tvm.nd.NDArray] | None = None
) -> Library:
    if not _is_static(mod):
        return relay.vm.compile(mod, target, params=params)
    lib = relay.build(mod, target, params=params)
    if target.kind.name == "cuda":
        plan_memory(lib)
    return lib


def _check_parameters(main: relay.Function) -> None:
    names = [param.name_hint for param in main.params]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"compile: main has two parameters named {twice}: give each a name of its own")
    for param in main.params:
        type_ = param.checked_type
        if not isinstance(type_, relay.TensorType):
            raise TypeError(f"compile: {param.name_hint} must be a tensor, not of type {type_}")


def _check_processor(target: tvm.target.Target) -> None:
    """Warn once; TVM itself says for each kernel, on standard error, that it takes a generic CPU."""
    name = str(target.attrs.get("mcpu", ""))
    if target.kind.name == "llvm" and name and name not in _processors(target):
        warning = f"compile: LLVM does not know the processor {name!r}: it compiles for a generic one"
        warnings.warn(warning, stacklevel=4)


def _processors(target: tvm.target.Target) -> list[str]:
    """The processors that LLVM knows, or just the target's own where TVM cannot list them."""
    list_ = tvm.get_global_func("target.llvm_get_cpu_archlist", allow_missing=True)
    return [str(each) for each in (list_(target) if list_ else target.attrs["mcpu"])]


def _at_level_3() -> AbstractContextManager[Any]:
    """The caller's pass context, or a copy of the default one at level 3."""
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
    return is_static(Graph(mod["main"]))
