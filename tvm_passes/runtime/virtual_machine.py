"""The virtual machine of either TVM, with the interface of `executors.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .arrays import Array
from .cuda import Launch


class VirtualMachineExecutor:
    """Runs any module; outputs have memory of their own."""

    name = "virtual machine"
    outputs = None
    written: tuple[()] = ()  # what a call writes is no other call's
    only_on_default_stream = True  # where it copies computed sizes to the host, whichever stream TVM uses
    why_no_cuda_graph: str | None = "the virtual machine decides in each call what to launch"

    def __init__(self, machine: Any, main: Callable[..., Any], inputs: Iterable[str]) -> None:
        """`main` is the machine's function, and `inputs` the names of its parameters."""
        self._machine, self._main = machine, main
        self.inputs = dict.fromkeys(inputs)

    def bind(self, arrays: list[Array]) -> None:
        self._arrays: Any = arrays

    def run(self) -> None:
        self._outputs: Any = self._main(*self._arrays)

    def launches(self) -> list[Launch]:
        return [Launch(self.run)]

    def results(self) -> list[Array]:
        outputs, self._outputs, self._arrays = self._outputs, None, None  # whose memory belongs to the caller
        return list(_flat(outputs))


class CapturableMachineExecutor(VirtualMachineExecutor):
    """Runs a module that launches the same in each call. A captured run overwrites the results before it."""

    only_on_default_stream = False
    why_no_cuda_graph = None
    _is_captured = False

    def bind(self, arrays: list[Array]) -> None:
        self._is_captured = False
        super().bind(arrays)

    def launches(self) -> list[Launch]:
        self._is_captured = True
        return super().launches()

    def results(self) -> list[Array]:
        return list(_flat(self._outputs)) if self._is_captured else super().results()


def _flat(value: Any) -> Iterator[Array]:
    if isinstance(value, Array):
        yield value
    else:
        for part in value:
            yield from _flat(part)
