"""Compile a module to a model, for the executor that suits it."""

from __future__ import annotations

from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from ..analysis.targets import target_of
from ..module_argument import check_has_main
from .arrays import Array
from .compiled_for import remember
from .libraries import Library, built, signature_of
from .model import Model, check_options, device_here
from .params_argument import checked
from .runs_here import check_can_be_built, check_is_for_here


def compile(
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    params: dict[str, Array] | None = None,
    *,
    device: str | tvm.runtime.Device | None = None,
    **options: Any,
) -> Model:
    """Compile a module to a `Model`, in the current pass context or, in Relay, at `opt_level=3`.

    Parameters
    ----------
    mod : tvm.IRModule
        In Relay it runs on the graph executor if all types in `main` are static and there is no control flow,
        else, and in Relax, on the virtual machine. Outputs are named by the function's attribute
        `output_names`.
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
    params = checked(mod, params, "compile")
    target = _target_of(mod, target, "compile")
    check_options(options, "compile")
    check_is_for_here(target, "compile")
    device = device_here(device or target.kind.name, "compile")
    lib, signature = built(mod, target, params, run_here=True), signature_of(mod)
    if options.get("cut") is True and signature.padded_rows is not None:
        options["cut"] = signature.padded_rows
    return Model(
        lib,
        device,
        output_names=signature.output_names,
        input_types=signature.inputs,
        **options,
    )


def build_library(
    mod: tvm.IRModule, target: str | tvm.target.Target, params: dict[str, Array] | None = None
) -> Library:
    """The library that `compile` makes a `Model` of, for `save` or a `Model` elsewhere; needs no device.

    Raises `CompileFailure` where TVM cannot compile the module for the target.
    """
    params = checked(mod, params, "build_library")
    target = _target_of(mod, target, "build_library")
    return remember(built(mod, target, params, run_here=False), target)


def _target_of(mod: tvm.IRModule, text: str | tvm.target.Target, caller: str) -> tvm.target.Target:
    """The target, if a module can be compiled for it to what runs."""
    target = target_of(text, caller)
    check_has_main(mod, caller)
    check_can_be_built(target, caller)
    return target
