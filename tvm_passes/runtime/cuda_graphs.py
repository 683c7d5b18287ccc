"""CUDA graphs of TVM 0.27's virtual machine, of kernels between what cannot be captured.

`build_library` asks for them. The memory of what they compute belongs to the machine, so that a run of which
all shapes are known can be captured as a whole, too, if the machine runs their kernels one by one.
"""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm.runtime.vm import VirtualMachine

from ..analysis.targets import is_for_gpu

OPTION = "relax.backend.use_cuda_graph"
RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"
# Shapes known at run time only, branches, and functions that copy to the host, such as nonzero.
DECIDING = ("vm.builtin.alloc_shape_heap", "vm.builtin.read_if_cond", "relax.run.", "\n  if ", "\n  goto ")


def asked_for(target: tvm.target.Target) -> AbstractContextManager[Any]:
    """The current pass context, for CUDA with such graphs, unless it says otherwise."""
    if not is_for_gpu(target):
        return nullcontext()
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        current.opt_level,
        list(current.required_pass),
        list(current.disabled_pass),
        list(current.instruments),
        {OPTION: True, **current.config},
    )


def can_be_captured(lib: tvm.runtime.Module) -> bool:
    """Whether each run of a module launches the same kernels, on memory that stays, and on its results."""
    text = str(lib["as_text"]())
    if RUN_OR_CAPTURE not in text or any(each in text for each in DECIDING):
        return False
    main = text.partition("@main:")[2].partition("\n\n")[0]
    return main.count("vm.builtin.alloc_storage") <= _results_of(main)


def _results_of(main: str) -> int:
    """How many values the code of a function returns."""
    (returned,) = re.findall(r"^  ret +(\S+)", main, re.MULTILINE)
    tuples = re.findall(rf"make_tuple +in: (.*?) dst: {returned}$", main, re.MULTILINE)
    return len(tuples[-1].split(",")) if tuples else 1


_one_at_a_time = threading.Lock()  # makes a machine, which looks for the function while it is made


@functools.cache
def _captures() -> Any:
    """TVM's own function, None in a TVM without CUDA."""
    return tvm.get_global_func(RUN_OR_CAPTURE, allow_missing=True)


def machine_without(lib: tvm.runtime.Module, device: tvm.runtime.Device) -> VirtualMachine:
    """A machine that runs the kernels of graphs one by one."""

    found: list[Callable[[], VirtualMachine | None]] = []

    def run(_machine: Any, function: Any, arguments: Any, *_place: Any) -> Any:
        machine = found[0]()
        assert machine is not None  # whoever runs it has it
        return machine.invoke_closure(function, *arguments)

    captures = _captures()
    if captures is None:
        return VirtualMachine(lib, device)
    with _one_at_a_time:
        tvm.register_global_func(RUN_OR_CAPTURE, run, override=True)
        try:
            machine = VirtualMachine(lib, device)
        finally:
            tvm.register_global_func(RUN_OR_CAPTURE, captures, override=True)
    found.append(weakref.ref(machine))  # it has `run`, which it would keep in memory otherwise
    return machine
