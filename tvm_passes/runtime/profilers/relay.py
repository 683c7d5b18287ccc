"""TVM 0.17: its debugger of the graph executor, and its profiler of the virtual machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

from tvm.contrib.debugger.debug_executor import GraphModuleDebug
from tvm.runtime.profiler_vm import VirtualMachineProfiler
from tvm.runtime.vm import Executable

from ..arrays import Array
from ..model import Model

__all__ = ["profiler"]


@contextlib.contextmanager
def profiler(model: Model, inputs: list[Array]) -> Iterator[Callable[[], list[tuple[str, str, float]]]]:
    """A function that runs the model, and returns the name, shapes and milliseconds of each call."""
    if model.lib.implements_function("vm_load_executable"):
        machine = VirtualMachineProfiler(Executable(model.lib), model.device)
        yield lambda: list(map(_call, machine.profile(*inputs).calls))
        return
    module = model.lib["debug_create"]("default", model.device)
    graph = GraphModuleDebug(module, [model.device], model.lib["get_graph_json"](), None)
    try:
        for name, array in zip(model.inputs, inputs):
            graph.set_input(name, array)
        yield lambda: list(map(_call, graph.profile().calls))
    finally:
        graph.exit()  # removes the folder that it made


def _call(call: Any) -> tuple[str, str, float]:
    shapes = str(call["Argument Shapes"]) if "Argument Shapes" in call else ""
    return str(call["Name"]), shapes, call["Duration (us)"].microseconds / 1e3
