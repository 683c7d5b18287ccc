"""Modules of torch and of Relax, and what these answer."""

import contextlib
import os
from unittest import mock

import numpy as np
import torch

import tvm
from tvm import relax

LLVM = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
QUICK = tvm.target.Target({"kind": "llvm", "opt-level": 0})  # for networks, whose many kernels run once
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def module_of(calls):
    """A module that computes `{name: (build, types of its arguments)}`, a function for each."""
    builder = relax.BlockBuilder()
    for name, (build, types) in calls.items():
        parameters = [relax.Var(f"x{at}", type_) for at, type_ in enumerate(types)]
        with builder.function(name, parameters):
            builder.emit_func_output(builder.emit(build(parameters)))
    return builder.get()


def types_of(arrays, lengths=None):
    """The types of arrays; extents that `lengths` names, as in "n 4", are known only at run time."""
    variables = {}

    def extent(name, length):
        return length if name == "-" else variables.setdefault(name, tvm.tirx.Var(name, "int64"))

    names = [each.split() for each in lengths] if lengths else [["-"] * array.ndim for array in arrays]
    shapes = [[extent(*each) for each in zip(axes, array.shape)] for axes, array in zip(names, arrays)]
    return [relax.TensorType(shape, str(array.dtype)) for shape, array in zip(shapes, arrays)]


def compiled(module, target=LLVM):
    with target:
        return tvm.compile(module, target=target)


def run(executable, arrays, name="main", device=None):
    device = device or tvm.cpu()
    machine = relax.VirtualMachine(executable, device)
    return _flat(machine[name](*[tvm.runtime.tensor(np.asarray(each, order="C"), device) for each in arrays]))


def assert_nvcc_compiles(module):
    """By the compiler that is asked for, since TVM keeps a source that no compiler takes."""
    sizes = []
    compile_cuda = tvm.get_global_func("tvm_callback_cuda_compile")

    def compile_and_measure(source):
        binary = compile_cuda(source)
        sizes.append(len(binary))
        return binary

    with (
        mock.patch.dict(os.environ, TVM_CUDA_COMPILE_MODE="nvcc"),
        replaced("tvm_callback_cuda_compile", compile_and_measure),
    ):
        compiled(module, CUDA)
    assert sizes and all(sizes)


@contextlib.contextmanager
def replaced(name, function):
    """While it lasts, another function has the name of one of TVM's."""
    original = tvm.get_global_func(name)
    tvm.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        tvm.register_global_func(name, original, override=True)


def _flat(value):
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for part in value for array in _flat(part)]
