"""Modules of Relax: compiled for the virtual machine, run, and stored, with the weights in the library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Union

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm
from tvm.runtime.vm import VirtualMachine

from .. import cuda_graphs
from ..arrays import Array, is_cuda, type_of
from ..compile_failure import failure_of
from ..loaded import loaded
from ..signature import Signature, check_parameters
from ..virtual_machine import CapturableMachineExecutor, VirtualMachineExecutor

if TYPE_CHECKING or tvm_in_use.compiles:
    from tvm import relax

__all__ = [
    "Library",
    "built",
    "executor_of",
    "input_names",
    "module_of",
    "put_in",
    "signature_of",
    "taken_out",
]

Library = Union[tvm.runtime.Module, tvm.runtime.Executable]


def signature_of(mod: tvm.IRModule) -> Signature:
    """What `main` takes and returns."""
    main = mod["main"]
    result = main.ret_ty
    return Signature(
        {param.name: param.ty for param in main.params},
        list(result.fields) if isinstance(result, relax.TupleType) else [result],
        dict(main.attrs.items()) if main.attrs else {},
    )


def module_of(lib: Library) -> tvm.runtime.Module:
    return lib.jit() if isinstance(lib, tvm.runtime.Executable) else lib


def input_names(lib: tvm.runtime.Module) -> list[str]:
    """What a compiled `main` takes: of its parameters, those that are no weights by now."""
    return _input_names(lib["vm_load_executable"]())


def _input_names(executable: tvm.runtime.Module) -> list[str]:
    name_of = executable["get_function_param_name"]
    return [str(name_of("main", place)) for place in range(executable["get_function_arity"]("main"))]


def built(
    mod: tvm.IRModule, target: str | tvm.target.Target, params: Mapping[str, Array] | None, run_here: bool
) -> Library:
    """Compile a module, in the current pass context."""
    tvm_in_use.require_compiler("compile")
    check_parameters([(param.name, param.ty) for param in mod["main"].params])
    for place, type_ in enumerate(signature_of(mod).outputs):
        if type_of(type_) is None:
            raise TypeError(f"compile: result {place} must be a tensor, not of type {type_}")
    target = tvm.target.Target(target)
    if params:
        mod = relax.transform.BindParams("main", dict(params))(mod)
    try:
        with target, cuda_graphs.asked_for(target):
            return tvm.compile(mod, target=target)
    except Exception as error:  # TVM raises many types
        raise failure_of("the model", target, error) from error


def executor_of(
    lib: tvm.runtime.Module, device: tvm.runtime.Device, copy_weights: bool = True
) -> VirtualMachineExecutor:
    """The executor for a result of `tvm.compile`, loaded from a file or not; it never copies weights."""
    if not lib.implements_function("vm_load_executable"):
        raise TypeError(f"Model: a module of type {lib.kind} is no result of tvm.compile of a Relax module")
    is_static = is_cuda(device) and cuda_graphs.can_be_captured(lib)
    machine = cuda_graphs.machine_without(lib, device) if is_static else VirtualMachine(lib, device)
    executor = CapturableMachineExecutor if is_static else VirtualMachineExecutor
    return executor(machine, machine["main"], _input_names(machine.module))


@contextlib.contextmanager
def taken_out(lib: tvm.runtime.Module) -> Iterator[tuple[tvm.runtime.Module, dict[str, Array]]]:
    """A library to be exported, and the weights that it lacks: none."""
    yield lib, {}


def put_in(file: Path, weights: Mapping[str, Array]) -> tvm.runtime.Module:
    return loaded(file)
