"""TVM 0.27, whose virtual machine says when a call begins and ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from ..arrays import Array
from ..cuda_graphs import RUN_OR_CAPTURE, machine_without
from ..model import Model

__all__ = ["profiler"]


@contextlib.contextmanager
def profiler(model: Model, inputs: list[Array]) -> Iterator[Callable[[], list[tuple[str, str, float]]]]:
    """A function that runs the model, and returns the name, shapes and milliseconds of each call."""
    machine = machine_without(model.lib, model.device)
    calls: list[tuple[str, str, float]] = []
    begun = 0.0

    def note(_function: Any, name: str, is_before: bool, _result: Any, *arguments: Any) -> None:
        nonlocal begun
        if name == RUN_OR_CAPTURE:  # its kernels are calls of their own
            return
        model.device.sync()
        now = time.perf_counter()
        if is_before:
            begun = now
        else:
            calls.append((name, _shapes(arguments), (now - begun) * 1e3))

    def run() -> list[tuple[str, str, float]]:
        calls.clear()
        machine["main"](*inputs)
        return list(calls)

    machine.set_instrument(note)
    yield run


def _shapes(arguments: tuple[Any, ...]) -> str:
    """As TVM 0.17 writes them: float32[1, 8], float32[8, 4]."""
    tensors = (each for each in arguments if isinstance(each, tvm.runtime.Tensor))
    return ", ".join(f"{each.dtype}[{', '.join(map(str, each.shape))}]" for each in tensors)
