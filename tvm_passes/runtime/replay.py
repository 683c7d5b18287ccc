"""Calls of a captured model on tensors of torch: all that they share is settled before.

TVM takes no part in them. The graph reads inputs where they are, or the driver copies them to where it does,
and the outputs are known from before. DLPack for each tensor, and a number read into memory that is not
pinned, would take longer than some networks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import Array
from .cuda_driver import driver
from .memory import Place, overlaps
from .tensors import ALIGNMENT, NUMPY, TORCH, Kind, Tensor, why_unreadable


class Replay:
    """The inputs and outputs of a captured model, as torch tensors of their memory.

    Parameters
    ----------
    launch : callable
        Queues the work on a stream, with the inputs at some places at other addresses.
    inputs, outputs : sequences of Array
        Of the model, on its device; `outputs` with the number of detections where there is a `cut`.
    cut : sequence
        As `Model` has it, for each output but the last; empty without a cut.
    fresh : bool
        Whether results of torch are copies.
    movable : collection of int
        The places of inputs that the work can read where they are given.
    """

    def __init__(
        self,
        launch: Callable[[int, Mapping[int, int]], object],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        cut: Sequence[tuple[int, ...]],
        fresh: bool,
        movable: Collection[int] = (),
    ) -> None:
        import torch

        with torch.inference_mode(False):  # in which they could not be written outside it
            self._inputs, self._outputs = (
                [TORCH.result(array, False, 0) for array in arrays] for arrays in (inputs, outputs)
            )
            if cut:
                self._numbers = _pinned(self._outputs[-1])
                self._counts = self._numbers.numpy().reshape(-1)  # in the same memory
        self._types = [(tuple(array.shape), array.dtype) for array in inputs]
        self._launch, self._cut, self._fresh, self._movable = launch, cut, fresh, movable
        self._written = [*map(_place_of, self._outputs)]
        self._read = [*map(_place_of, self._inputs)]
        self._returns_inputs = any(overlaps(place, self._read) for place in self._written)

    @functools.cached_property
    def _staged(self) -> list[Any]:
        """A tensor of the host for each input, from which the device can copy."""
        return [_pinned(tensor) for tensor in self._inputs]

    def kind_of(self, values: Sequence[Tensor]) -> Kind | None:
        """TORCH or NUMPY, if all values are of that kind, and as the model takes them."""
        if not values or len(values) != len(self._inputs):
            return None
        if all(map(_is_like, values, self._inputs)):
            return TORCH
        return NUMPY if all(map(_is_of_type, values, self._types)) else None

    def run(self, values: Sequence[Tensor], kind: Kind, stream: int) -> list[Tensor]:
        """What the model makes of these values, on torch's stream, whose address is `stream`."""
        self._launch(stream, self._fill(values, kind, stream))
        return self._results(kind, stream)

    def _fill(self, values: Sequence[Tensor], kind: Kind, stream: int) -> dict[int, int]:
        """Copy inputs; of those that can be read where they are, the address by place."""
        if kind is NUMPY:
            for value, staged in zip(values, self._staged):
                np.copyto(staged.numpy(), value)
            values = self._staged
        elif self._returns_inputs:  # which one place is overwritten in before another one reads it
            values = [each.clone() if overlaps(_place_of(each), self._read) else each for each in values]
        elsewhere = {}
        for place, (value, buffer) in enumerate(zip(values, self._inputs)):
            if kind is TORCH and place in self._movable and self._can_be_read(value):
                elsewhere[place] = value.data_ptr()
            else:
                _copy(value, buffer, stream)
        return elsewhere

    def _can_be_read(self, value: Any) -> bool:
        """Whether the work can read a tensor where it is: as an array of TVM, and not while it writes it."""
        address, size = value.data_ptr(), value.nbytes
        if not size or address % ALIGNMENT or not value.is_contiguous() or value.is_neg():
            return False
        return not overlaps((address, size), self._written)

    def _results(self, kind: Kind, stream: int) -> list[Tensor]:
        """The outputs, cut: reading the number is the only wait."""
        outputs = [tensor.detach() for tensor in self._outputs]  # whose owner may change what they say
        if self._cut:
            numbers = outputs.pop()
            _copy(numbers, self._numbers, stream)
            if numbers.is_cuda:
                driver()("cuStreamSynchronize", stream)
            counts = self._counts.tolist()
            outputs = [
                output.narrow(rows[0], 0, counts[rows[1]]) if rows else output
                for output, rows in zip(outputs, self._cut)
            ]
        if kind is NUMPY:
            return [_as_numpy(output) for output in outputs]
        return [output.clone() for output in outputs] if self._fresh else outputs


def _place_of(tensor: Any) -> Place:
    return tensor.data_ptr(), tensor.nbytes


def _is_like(value: Tensor, tensor: Any) -> bool:
    """Whether it is an ordinary tensor of the same type, on the same device."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_nested:
        return False
    if value.layout is not torch.strided or value.device != tensor.device or not _same_type(value, tensor):
        return False
    return why_unreadable(value) is None


def _is_of_type(value: Tensor, type_: tuple[tuple[int, ...], str]) -> bool:
    """Whether it is an ordinary array of NumPy of this shape and type."""
    if type(value) is not np.ndarray or value.dtype.kind not in "biuf" or not value.dtype.isnative:
        return False
    return (value.shape, value.dtype.name) == type_


def _same_type(value: Tensor, other: Tensor) -> bool:
    return value.dtype == other.dtype and value.shape == other.shape


def _copy(tensor: Any, into: Any, stream: int) -> None:
    """Queue a copy between tensors of the same type; torch takes 20 us for what the driver does in 3."""
    if (tensor.is_cuda or into.is_cuda) and tensor.numel() and tensor.is_contiguous() and not tensor.is_neg():
        driver()("cuMemcpyAsync", into.data_ptr(), tensor.data_ptr(), tensor.nbytes, stream)
    else:
        into.copy_(tensor.detach(), non_blocking=True)


def _pinned(tensor: Any) -> Any:
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _as_numpy(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor  # which NumPy lacks
    return tensor.numpy(force=True).copy() if tensor.device.type == "cpu" else tensor.numpy(force=True)
