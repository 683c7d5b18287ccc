"""Compile the kernels of a network for the CPU on all cores.

TVM gives them to LLVM as one module, which takes one core for a third of the time that a network needs, and
again for the machine code as the first of them is called. Inside `on_all_cores`, TVM's build for LLVM divides
them among as many modules as there are cores; one of these has the others as its imports, in which TVM looks
for a function, too. Their checks are reduced to those that can fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from topi_ext.bootstrap.threads import cores  # topi_ext comes before tvm

import tvm

from .argument_checks import without_needless_checks

BUILD = "target.build.llvm"
KERNELS = 8  # of a module at least
MOST = 8  # modules


class _State(threading.local):
    """How the build in this thread divides the kernels, and whether they are to run in this process."""

    parts = 0  # of a network, and none outside of `on_all_cores`
    run_here = False
    types_are_known = True


_state = _State()


@contextlib.contextmanager
def on_all_cores(run_here: bool, types_are_known: bool = True) -> Iterator[None]:
    """For networks whose kernels are all for the CPU: those that start kernels of a device need its module.

    They are called by a `Model`, which checks what it is given.

    `run_here`: have the machine code made, too, rather than when the first kernel is called.
    `types_are_known`: whether the `Model` knows the types of inputs from the library alone.
    """
    before = dict(vars(_state))
    _state.parts, _state.run_here, _state.types_are_known = min(cores(), MOST), run_here, types_are_known
    try:
        yield
    finally:
        vars(_state).clear()
        vars(_state).update(before)


def _build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    if not _state.parts or any(_calls_others(function) for function in mod.functions.values()):
        return _stock_build(mod, target)
    known = _state.types_are_known
    functions = {name: without_needless_checks(each, known) for name, each in mod.functions.items()}
    mod = tvm.IRModule(functions, attrs=mod.attrs)
    parts = min(_state.parts, len(functions) // KERNELS)
    if parts < 2:
        return _stock_build(mod, target)
    # By turns: kernels of one kind, which take equally long, have names that follow each other.
    names = sorted(mod.functions, key=lambda name: name.name_hint)
    modules = [
        tvm.IRModule({name: mod[name] for name in names[first::parts]}, attrs=mod.attrs)
        for first in range(parts)
    ]
    with ThreadPoolExecutor(parts) as pool:
        first, *others = pool.map(partial(_part, target, _state.run_here), modules)
    for other in others:
        first.import_module(other)
    return first


def _calls_others(function: tvm.tir.PrimFunc) -> bool:
    """Whether it calls others of its module by their addresses, as what the executor "aot" runs does."""
    attrs = function.attrs or {}
    return "runner_function" in attrs or "tir.is_entry_func" in attrs


def _part(target: tvm.target.Target, run_here: bool, mod: tvm.IRModule) -> tvm.runtime.Module:
    built = _stock_build(mod, target)
    if run_here:
        built.get_function(str(next(iter(mod.functions.values())).attrs["global_symbol"]))
    return built


_stock_build = tvm.get_global_func(BUILD, allow_missing=True)
if _stock_build is not None:
    tvm.register_func(BUILD, _build, override=True)
