"""A module of torch as all importers take it: its inputs, its outputs, and its mode while it is imported."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .errors import ImportFailure

DETECTION_ORDER = ("boxes", "scores", "labels")  # what a detector returns first, always in this order


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
            instead = (
                "give torch.from_numpy of it"
                if isinstance(tensor, np.ndarray)
                else "pass a module that calls the model with it, and takes tensors only"
            )
            kind = type(tensor).__name__
            raise ImportFailure(f"example_inputs[{index}] must be a tensor, not {kind}: {instead}")
        unlike = _unlike_arrays(tensor)
        if unlike:
            raise ImportFailure(f"example_inputs[{index}] {unlike}")
    return tuple(tensors)


def _unlike_arrays(tensor: torch.Tensor) -> str | None:
    """In what a tensor differs from an array of numbers, and what to give instead."""
    if tensor.is_nested or not (tensor.layout == torch.strided or tensor.is_mkldnn):
        kind = "nested" if tensor.is_nested else str(tensor.layout).replace("torch.", "")
        return f"is {kind}, and compiled networks take dense tensors: give one, such as of .to_dense()"
    if tensor.is_meta:
        return "is on the device meta, where tensors have no numbers: give one on the CPU"
    if tensor.is_quantized:
        return f"is quantized to {tensor.dtype}, and compiled networks take plain numbers: give .dequantize()"
    if tensor.is_complex():
        return (
            f"is of {tensor.dtype}, and TVM has no complex numbers: give torch.view_as_real of it to a model "
            "that computes with real and imaginary parts"
        )
    return None


def _instead_of(value: Any) -> str:
    """What a model should return in place of something that is no tensor."""
    if isinstance(value, (bool, int, float, np.ndarray)):
        return "return it as a tensor that is computed from the inputs, or leave it out"
    if hasattr(value, "is_complex"):
        return "TVM has no complex numbers: return torch.view_as_real of it"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "return a list or a tuple of tensors"
    return "return tensors, in lists, tuples, dicts or dataclasses, and leave out all else"


def _refuse_missing_weights(model: torch.nn.Module) -> None:
    """Refuse a model whose weights are still to come."""
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        named = f"{type(model).__name__}.{name}"
        if torch.nn.parameter.is_lazy(weight):
            raise ImportFailure(f"{named} has no shape until the model is first run: run it once")
        if weight.is_meta:
            raise ImportFailure(
                f"{named} is on the device meta, where tensors have no numbers: give the model its weights, "
                "as load_state_dict(weights, assign=True) does"
            )


def _has_mode(part: torch.nn.Module) -> bool:
    """Whether it is not frozen: `eval()` gives a flag to the Python object of a frozen script, too."""
    if isinstance(part, torch.jit.ScriptModule):
        return bool(part._c.hasattr("training"))
    return hasattr(part, "training")


@contextlib.contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then restore the flag of each of its parts."""
    if not all(map(_has_mode, model.modules())):
        raise ImportFailure("a frozen script has no modes and weights: pass what torch.jit.freeze was given")
    _refuse_missing_weights(model)
    flags = [(part, part.training) for part in model.modules()]
    with contextlib.suppress(NotImplementedError):  # of what torch.export made, which keeps its mode
        model.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag


def named_tensors(value: Any, *path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in `value` with their names, which `from_pytorch` documents."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path) or "output", value
    elif isinstance(value, Mapping):
        first = [key for key in DETECTION_ORDER if key in value]
        ordered = first if len(first) == len(DETECTION_ORDER) else []
        for key in ordered + [key for key in value if key not in ordered]:
            yield from named_tensors(value[key], *path, str(key))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from named_tensors(dict(zip(value._fields, value)), *path)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            name = str(index) if path else f"output{index}"
            yield from named_tensors(item, *path, *([name] if len(value) > 1 else []))
    elif dataclasses.is_dataclass(value):
        fields = (each.name for each in dataclasses.fields(value))
        yield from named_tensors({name: getattr(value, name) for name in fields}, *path)
    elif value is not None:
        place, kind = ".".join(path) or "output", type(value).__name__
        raise ImportFailure(f"the model's {place} is of type {kind}, not a tensor: {_instead_of(value)}")
