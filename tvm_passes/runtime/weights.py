"""The weights of compiled libraries, apart from their code: those that are equal are kept once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm.runtime.vm import Executable

from .loaded import loaded

MIN_BYTES = 1024  # of constants of the virtual machine; smaller ones stay in its code


@contextlib.contextmanager
def taken_out(lib: tvm.runtime.Module) -> Iterator[tuple[tvm.runtime.Module, dict[str, tvm.nd.NDArray]]]:
    """A library without its weights, to be exported, and those by name. Afterwards, it has them again."""
    if lib.implements_function("get_graph_json"):
        weights = lib["get_graph_params"]()
        yield lib["remove_params"](), {str(name): array for name, array in weights.items()}
        return
    executable = Executable(lib)
    weights = executable.get_late_bound_consts(MIN_BYTES)  # and removes them
    try:
        yield lib, {str(name): array for name, array in weights.items()}
    finally:
        executable.load_late_bound_consts_from_map(weights)


def put_in(file: Path, weights: Mapping[str, tvm.nd.NDArray]) -> tvm.runtime.Module:
    """The library of a file, with weights that it refers to, wherever they are."""
    lib = loaded(file)
    if lib.implements_function("vm_load_executable"):
        Executable(lib).load_late_bound_consts_from_map(dict(weights))
        return lib
    pairs = [part for pair in weights.items() for part in pair]
    create = tvm.get_global_func("tvm.graph_executor_factory.create")
    return create(lib["get_graph_json"](), lib.imported_modules[0], "default", *pairs)
