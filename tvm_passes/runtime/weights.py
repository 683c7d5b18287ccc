"""The weights of compiled libraries, apart from their code: those that are equal are kept once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule
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
    return _factory(lib["get_graph_json"](), lib.imported_modules[0], "default", weights)


def name_apart(lib: GraphExecutorFactoryModule, inputs: Collection[str]) -> None:
    """Rename weights that have the name of an input: TVM names them p0, p1, ..., whatever inputs are."""
    alike = set(inputs) & set(lib.params)
    if not alike:
        return
    graph = json.loads(lib.graph_json)
    taken = {node["name"] for node in graph["nodes"]}
    free = (name for name in map("p{}".format, count()) if name not in taken)
    new = dict(zip(sorted(alike), free))
    for node in graph["arg_nodes"][len(inputs) :]:  # inputs are first
        name = graph["nodes"][node]["name"]
        graph["nodes"][node]["name"] = new.get(name, name)
    lib.params = {new.get(name, name): array for name, array in lib.params.items()}
    put_graph(lib, graph)


def put_graph(lib: GraphExecutorFactoryModule, graph: Mapping[str, Any]) -> None:
    """Replace the graph of a library."""
    lib.graph_json = json.dumps(graph)
    lib.module = _factory(lib.graph_json, lib.module.imported_modules[0], lib.libmod_name, lib.params)


def _factory(
    graph: str, code: tvm.runtime.Module, name: str, weights: Mapping[str, tvm.nd.NDArray]
) -> tvm.runtime.Module:
    """A library of TVM's graph executor."""
    pairs = [part for pair in weights.items() for part in pair]
    return tvm.get_global_func("tvm.graph_executor_factory.create")(graph, code, name, *pairs)
