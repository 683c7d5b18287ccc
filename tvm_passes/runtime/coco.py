"""What COCO's tools take of a network's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from .tensors import NUMPY, TORCH, Tensor, kind_of


class RunLengths(Sequence[bytes]):
    """COCO's run lengths of masks, one behind the other.

    Each is an object of Python only when someone asks for it: a job has hundreds of thousands a second.
    """

    def __init__(self, text: np.ndarray, bounds: np.ndarray) -> None:
        """Of mask i, they are `text[bounds[i] : bounds[i + 1]]`."""
        self.text, self.bounds = text, bounds

    @staticmethod
    def of(encoded: Tensor) -> RunLengths:
        """From what `coco_masks` takes."""
        kind = kind_of(encoded)
        shape, dtype = kind.type_of(encoded) if kind else (None, None)
        if shape is None or len(shape) != 2 or not shape[1] or dtype != "uint8":
            raise TypeError("coco_masks: the masks must be a uint8 tensor (N, capacity), as of encode_masks")
        if kind is TORCH and not encoded.is_cpu:
            text, lengths = _taken_together(encoded)
        else:
            text, lengths = _found_in(encoded if kind is NUMPY else encoded.numpy())
        too_long = np.flatnonzero(lengths == 0)
        if len(too_long):
            raise ValueError(
                f"coco_masks: {len(too_long)} of {len(encoded)} masks take more than {shape[1]} bytes, the "
                f"first is {too_long[0]}: encode them with a larger capacity"
            )
        return RunLengths(text, np.append(0, np.cumsum(lengths)))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> RunLengths: ...

    def __getitem__(self, at: int | slice) -> bytes | RunLengths:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("RunLengths has no slices with a step")
            bounds = self.bounds[begin : max(begin, end) + 1]
            return RunLengths(self.text[bounds[0] : bounds[-1]], bounds - bounds[0])
        at = range(len(self))[at]
        return self.text[self.bounds[at] : self.bounds[at + 1]].tobytes()

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RunLengths({list(self)})"


def _found_in(encoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All bytes before the first 0 of each row, and how many there are.

    That 0 is near. Operations of NumPy would read all of the room for it, and let other threads of Python
    take turns, which they give back after a millisecond.
    """
    rows, capacity = encoded.tobytes(), encoded.shape[1]
    found = []
    for begin in range(0, len(rows), capacity):
        end = rows.find(b"\0", begin, begin + capacity)
        found.append(rows[begin : begin + capacity if end < 0 else end])
    return np.frombuffer(b"".join(found), "uint8"), np.array([*map(len, found)], "int64")


def _taken_together(encoded: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The same of a tensor of torch, where it is: what is copied from there is a small part of the room."""
    is_used = encoded != 0  # behind the first 0 there is nothing else
    text, lengths = encoded.reshape(-1)[is_used.reshape(-1)], is_used.sum(1)
    return text.cpu().numpy(), lengths.cpu().numpy()


def coco_masks(encoded: Tensor, image_size: Sequence[int]) -> list[dict[str, Any]]:
    """The masks as `pycocotools.mask.encode` gives them: a dict of `size` and `counts` for each.

    `encoded` is what `topi_ext.encode_masks` computes in the form "rle", and so what networks return after
    `ReturnEncodedMasks`: (N, capacity), of torch, NumPy or TVM. `image_size` is the height and width of the
    image. Raises ValueError for a mask that did not fit.
    """
    size = [int(length) for length in image_size]
    return [{"size": list(size), "counts": counts} for counts in RunLengths.of(encoded)]
