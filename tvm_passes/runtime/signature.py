"""What a module takes and returns, whichever TVM compiles it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .arrays import type_of


@dataclass(frozen=True)
class Signature:
    """The types, which are TVM's, of the inputs by name and of the outputs; and the attributes of `main`."""

    inputs: Mapping[str, Any]
    outputs: list[Any]
    attrs: Mapping[str, Any]

    @property
    def output_names(self) -> list[str] | None:
        names = self.attrs.get("output_names")
        return None if names is None else list(map(str, names))

    @property
    def padded_rows(self) -> list[list[int]] | None:
        """For each output but the last, its axis of detections and the index of their number, or nothing."""
        padded = self.attrs.get("padded_rows")
        return None if padded is None else [[int(part) for part in rows] for rows in padded]


def check_parameters(parameters: Sequence[tuple[str, Any]]) -> None:
    """Refuse those, given by name and type, that a `Model` could not tell apart, or that are no tensors."""
    names = [name for name, _ in parameters]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"compile: main has two parameters named {twice}: give each a name of its own")
    for name, type_ in parameters:
        if type_of(type_) is None:
            raise TypeError(f"compile: {name} must be a tensor, not of type {type_}")
