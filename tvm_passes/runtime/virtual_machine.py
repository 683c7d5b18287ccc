"""The virtual machine of either TVM, with the interface of `executors.py`."""

from __future__ import annotations

import re
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
        try:
            self._outputs: Any = self._main(*self._arrays)
        except RuntimeError as error:
            raise _of_sizes(error) or error from None

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


def _of_sizes(error: RuntimeError) -> ValueError | None:
    """What TVM says where the sizes of the inputs are none that the network takes, as a sentence."""
    found = re.search(
        r"\((-?\d+) vs\. (-?\d+)\) : ErrorContext\(match_cast, "
        r"ty=R\.(?:Tensor\(\((.*)\), |Shape\(\[(.*)\]\)).*shape\[(\d+)\] mismatch",
        str(error),
        re.DOTALL,
    )
    if found is None:
        return None
    is_, needed, of_tensor, of_sizes, axis = found.groups()
    extents = re.findall(r"(?:[^,()]|\((?:[^()]|\([^()]*\))*\))+", of_tensor or of_sizes)
    wanted = extents[int(axis)].strip()
    return ValueError(
        f"the network does not take inputs of these sizes: {_must_be(wanted, needed)}, and is {is_}"
    )


def _must_be(wanted: str, needed: str) -> str:
    """What TVM wants of a size, in words where it is what the importer from ONNX asks for."""
    multiple = re.fullmatch(r"\(?(\w+)(?: \+ \d+\))? // (\d+) \* (\d+)", wanted)
    if multiple and multiple[2] == multiple[3]:
        return f"{multiple[1]} must be a multiple of {multiple[2]}"
    parts = re.fullmatch(r"(\w+?)(?:_by_\d+)+ \* (\d+)", wanted)  # of a size whose parts are counted before
    if parts:
        return f"{parts[1]} must be a multiple of {parts[2]}"
    bound = re.fullmatch(r"T\.(max|min)\((\w+), .+\)", wanted)
    if bound:
        return f"{bound[2]} must be at {'least' if bound[1] == 'max' else 'most'} {needed}"
    return f"one that must be {wanted}, {needed} here"


def _flat(value: Any) -> Iterator[Array]:
    if isinstance(value, Array):
        yield value
    else:
        for part in value:
            yield from _flat(part)
