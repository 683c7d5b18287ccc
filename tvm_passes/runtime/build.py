"""Compile a module to a model, for the executor that suits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from ..analysis.targets import target_of
from ..module_argument import check_module
from .arrays import Array
from .libraries import Library, built, signature_of
from .model import Model


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
    _check("compile", mod, params)
    target = target_of(target, "compile")
    lib, signature = built(mod, target, params, run_here=True), signature_of(mod)
    if options.get("cut") is True and signature.padded_rows is not None:
        options["cut"] = signature.padded_rows
    return Model(
        lib,
        device or target.kind.name,
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
    _check("build_library", mod, params)
    return built(mod, target_of(target, "build_library"), params, run_here=False)


def _check(caller: str, mod: tvm.IRModule, params: dict[str, Array] | None) -> None:
    check_module(mod, caller)
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"{caller}: params must be a dict of arrays by name, not {type(params).__name__}")
    for name, array in (params or {}).items():
        if not isinstance(array, (Array, np.ndarray)):
            raise TypeError(
                f"{caller}: params[{name!r}] must be an array of TVM or NumPy, not {type(array).__name__}"
            )
