"""In place of cuDNN: the packed function that compiled code calls answers as the reference does."""

import ctypes
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

from topi_ext._int8 import INT8
from topi_ext._tvm import address_of, register_function
from topi_ext.conv2d_nhwc import choose_kernel, cudnn, op, reference
from topi_ext.conv2d_nhwc.problem import ACTIVATIONS, Problem

import tvm

# cuDNN's names of types, and ours.
TYPES = SimpleNamespace(HALF="float16", BFLOAT16="bfloat16", FLOAT="float32", INT8="int8", INT32="int32")


def prefer_cudnn(monkeypatch):
    """cuDNN for all that it can do at all, also where the project's own kernel is faster."""
    monkeypatch.setattr(choose_kernel, "is_cudnn_better", lambda problem, _target: cudnn.is_capable(problem))


@pytest.fixture
def oracle(monkeypatch):
    """The problems that the packed function was asked, in order, on a device that the CPU emulates."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    asked = []

    def answer(text, *tensors):
        problem = Problem.from_json(text)
        asked.append(problem)
        given = {"bias": problem.bias, "residual": problem.residual, "slope": problem.slope}
        given["scale"] = problem.dtype == INT8
        names = [name for name in op.ARGUMENTS if given.get(name, True)]
        counts = {"data": problem.channels, "residual": problem.filters, "result": problem.filters}
        arrays = {
            name: channels_of(tensor, counts.get(name, tensor.shape[-1]))
            for name, tensor in zip([*names, "result"], tensors)
        }
        result = arrays.pop("result")
        result[...] = reference.conv2d_nhwc(**arrays, **as_options(problem))

    run = tvm.get_global_func(cudnn.OPERATOR.packed_function)
    register_function(cudnn.OPERATOR.packed_function)(answer)
    yield asked
    register_function(cudnn.OPERATOR.packed_function)(run)


def channels_of(tensor, count):
    """The first channels of a tensor, in its memory; a part of a wider one begins at its own address."""
    *pixels, whole = tensor.shape
    size = (int(np.prod(pixels)) - 1) * whole + count
    dtype = np.dtype(str(tensor.dtype))
    flat = np.frombuffer((ctypes.c_byte * (size * dtype.itemsize)).from_address(address_of(tensor)), dtype)
    strides = [whole * int(np.prod(pixels[at + 1 :])) for at in range(len(pixels))]
    strides = [step * dtype.itemsize for step in (*strides, 1)]
    return np.lib.stride_tricks.as_strided(flat, (*pixels, count), strides)


def as_options(problem):
    """What the reference is to be told beside the arrays."""
    written = {}
    for name in ("activation", "final_activation"):
        activation = getattr(problem, name)
        constants = (activation.low, activation.high)[: ACTIVATIONS[activation.name]]
        written[name] = (activation.name, *constants)
    return {
        "strides": problem.strides,
        "padding": problem.padding,
        "dilation": problem.dilation,
        "residual_scale": problem.residual_scale,
        "out_scale": problem.out_scale,
        "out_dtype": problem.out_dtype,
        **written,
    }
