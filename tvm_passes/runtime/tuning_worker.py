"""A process that finds the fastest plans for `tune`; see `main`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from topi_ext.bootstrap import user_cache
from topi_ext.cudnn import plans
from topi_ext.cudnn.session import Call

import tvm

from . import cuda

BLOCK = 1 << 20  # random numbers, which a tensor repeats
SCALE = 0.1  # sums of thousands of products stay far from float16's limit


def main(device_id: int) -> None:
    """Each line on the standard input is a call; a line on the standard output says that its plan is kept."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        find_plan(Call.from_json(line), tvm.cuda(device_id))
        print(file=answers, flush=True)


def find_plan(call: Call, device: tvm.runtime.Device) -> None:
    """Keep the fastest plan for a call; processes that do so at the same time take turns at timing."""
    run = tvm.get_global_func(call.packed_function)
    tensors = [_random(shape, dtype, device) for shape, dtype in call.tensors]  # and select the device
    with plans.timed_by(partial(_milliseconds_alone, device)):
        run(call.text, *tensors)


def _milliseconds_alone(device: tvm.runtime.Device, run: Callable[[], object]) -> float:
    with user_cache.alone_in("timing"):
        return cuda.milliseconds(device, run)


def _random(shape: tuple[int, ...], dtype: str, device: tvm.runtime.Device) -> tvm.nd.NDArray:
    """Numbers that take as much power as those of a network do: with zeros, a card may run faster."""
    values = np.resize(SCALE * np.random.default_rng(0).standard_normal(BLOCK, "float32"), shape)
    if dtype == "bfloat16":  # whose bits TVM takes, as NumPy lacks it
        values = (values.view("uint32") >> 16).astype("uint16")
    return tvm.nd.empty(shape, dtype, device).copyfrom(values)
