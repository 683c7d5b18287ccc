"""A module of torch as all importers take it: its example inputs, and its mode while it is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from .errors import ImportFailure


def tensors_of(example_inputs: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The example inputs as a tuple; refuses what is not made of tensors."""
    tensors = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(tensors, (tuple, list)):
        kind = type(tensors).__name__
        raise ImportFailure(f"example_inputs must be a tensor, or a tuple or list of tensors, not {kind}")
    if not tensors:
        raise ImportFailure("example_inputs must hold at least one tensor")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise ImportFailure(f"example_inputs[{index}] must be a tensor, not {type(tensor).__name__}")
    return tuple(tensors)


@contextlib.contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then restore the flag of each of its parts."""
    flags = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag
