"""The types of tensors, whichever TVM they are of."""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """The type of a tensor; a length that may be any is None."""

    shape: tuple[int | None, ...]
    dtype: str

    def takes(self, other: TensorType) -> bool:
        return len(self.shape) == len(other.shape) and all(
            length in (None, found) for length, found in zip(self.shape, other.shape)
        )

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('?' if length is None else str(length) for length in self.shape)})"
