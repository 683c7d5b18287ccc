"""Whether a library is what a folder says that it is: compiled for its target, from its module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from ..analysis.targets import has_onednn, is_for_cpu
from .libraries import Library, input_names, module_of
from .runs_here import features_of, machine_of
from .signature import Signature

GPUS = ("cuda", "opencl", "rocm", "vulkan")
TARGET = "_get_target_string"  # a function of code by LLVM


def remember(lib: Library, target: tvm.target.Target) -> Library:
    """A library that knows its target, as those of the graph executor do by themselves."""
    if not hasattr(lib, "target"):
        lib.target = [target]
    return lib


def check_target(lib: Library, target: tvm.target.Target, caller: str) -> None:
    """Raise ValueError where a folder for this target would be run where the library cannot be."""
    for built in getattr(lib, "target", None) or _of_code(module_of(lib)):
        if _needs_other(built, target):
            raise ValueError(
                f"{caller}: lib was compiled for {built}, not for {target}: give the target of build_library"
            )


def check_module_of(lib: tvm.runtime.Module, signature: Signature, caller: str) -> None:
    """Raise ValueError where the library was compiled from another module."""
    unknown = [name for name in input_names(lib) if name not in signature.inputs]
    if unknown:
        raise ValueError(
            f"{caller}: lib takes {', '.join(unknown)}, and mod has only "
            f"{', '.join(signature.inputs) or 'no inputs'}: give the module that lib was compiled from"
        )


def _of_code(lib: tvm.runtime.Module) -> Iterator[tvm.target.Target]:
    """The targets that its code tells; beside code for a GPU, that of LLVM is the host's."""
    parts = [*_parts(lib)]
    if not any(_kind(part) in GPUS for part in parts):
        yield from (tvm.target.Target(part[TARGET]()) for part in parts if _kind(part) == "llvm")


def _parts(module: tvm.runtime.Module) -> Iterator[Any]:
    yield module
    for part in module.imported_modules if hasattr(module, "imported_modules") else module.imports:
        yield from _parts(part)


def _kind(module: Any) -> str:
    return str(getattr(module, "type_key", None) or module.kind)


def _needs_other(built: tvm.target.Target, target: tvm.target.Target) -> bool:
    if built.kind.name != target.kind.name or machine_of(built) != machine_of(target):
        return True
    if is_for_cpu(target):
        lacks = set(features_of(built)) - set(features_of(target))
        return bool(lacks) or (has_onednn(built) and not has_onednn(target))
    return bool(built.attrs.get("arch") != target.attrs.get("arch"))
