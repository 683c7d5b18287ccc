"""Indices that are integers of a tensor without axes, such as `x[:, scores.argmax()]`.

torch takes their values as it traces, which would depend on data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class KeepScalarIndices(TorchFunctionMode):
    """While it lasts, what is read by such an index is selected along its axis."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.__getitem__:
            args = _selected(*args)
        return function(*args, **(kwargs or {}))


def _selected(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """The tensor without the axes of these indices, as torch selects before it reads by others."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(map(_is_scalar, items)):
        return x, index
    axis, axes = 0, []
    for item in items:
        if item is Ellipsis:
            axis += x.dim() - sum(map(_axes_of, items))
        elif _is_scalar(item):
            axes.append((axis, item))
        axis += _axes_of(item)
    for axis, item in reversed(axes):
        x = x.index_select(axis, item.reshape(1).long()).squeeze(axis)
    return x, tuple(item for item in items if not _is_scalar(item))


def _is_scalar(item: Any) -> bool:
    return (
        isinstance(item, Tensor)
        and item.dim() == 0
        and item.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    )


def _axes_of(item: Any) -> int:
    """How many axes an index is of."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
