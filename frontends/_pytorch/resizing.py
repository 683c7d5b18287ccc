"""Which elements PyTorch sums where it resizes an axis, as on CPUs for contiguous tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _taps

CUBIC, CUBIC_ANTIALIASED = -0.75, -0.5  # the coefficient of each kernel
SMALL = 128  # height plus width of images that PyTorch treats as small, at most
TVM_EPSILON = np.float32(1e-5)  # what TVM adds to a coordinate before it is rounded down


@dataclass(frozen=True)
class Axis:
    """A resized axis; `scale` is the given one, outputs per input, or None."""

    inputs: int
    outputs: int
    scale: float | None
    align_corners: bool
    dtype: type[np.floating[Any]]  # what PyTorch computes coordinates in

    @property
    def step(self) -> np.floating[Any]:
        """Inputs per output, as PyTorch rounds it."""
        one = self.dtype(1)
        if self.align_corners:
            return self.dtype(self.inputs - 1) / self.dtype(self.outputs - 1) if self.outputs > 1 else one * 0
        if self.scale is not None and self.scale > 0:
            return self.dtype(1.0 / self.scale)
        return self.dtype(self.inputs) / self.dtype(self.outputs)

    @property
    def by_ratio(self) -> bool:
        """Whether the operators of Relay take the same step."""
        if self.align_corners:
            return self.outputs > 1
        return self.step == self.dtype(self.inputs) / self.dtype(self.outputs)

    @property
    def places(self) -> np.ndarray:
        return np.arange(self.outputs, dtype=self.dtype)

    def centers(self) -> np.ndarray:
        """The coordinates of the outputs' centres in the input."""
        if self.align_corners:
            return self.places * self.step
        return (self.places + self.dtype(0.5)) * self.step - self.dtype(0.5)

    def nearest(self, exact: bool) -> np.ndarray:
        """The indices of the elements that are copied; if not `exact`, of those at the outputs' corners."""
        half = self.dtype(0.5)
        at = (self.places + half) * self.step if exact else self.places * self.step
        return np.minimum(np.floor(at).astype("int64"), self.inputs - 1)

    def nearest_of_tvm(self) -> np.ndarray:
        """The same, as Relay's operators compute them in the mode `asymmetric`."""
        if self.outputs % self.inputs == 0:
            return np.arange(self.outputs) // (self.outputs // self.inputs)
        step = np.float32(self.inputs) / np.float32(self.outputs)
        at = np.floor(step * np.arange(self.outputs, dtype="float32") + TVM_EPSILON)
        return np.minimum(at.astype("int64"), self.inputs - 1)

    def taps(self, mode: str, antialias: bool) -> _taps.Taps:
        if mode.startswith("nearest"):
            return _taps.nearest(self.nearest(mode == "nearest-exact"), self.inputs)
        if antialias:
            # PyTorch ignores align_corners here except for the step.
            centers = (self.places + self.dtype(0.5)) * self.step - self.dtype(0.5)
            is_cubic = mode == "cubic"
            kernel = _taps.cubic_kernel(CUBIC_ANTIALIASED) if is_cubic else _taps.linear_kernel
            return _taps.antialiased(centers, float(self.step), self.inputs, kernel, 2 if is_cubic else 1)
        if mode == "cubic":
            return _taps.cubic(self.centers(), self.inputs, CUBIC)
        return _taps.linear(self.centers(), self.inputs)


def is_ignored(inputs: int, outputs: int, sizes: list[int], mode: str, antialias: bool) -> bool:
    """Whether PyTorch ignores a scale: it then copies elements, each one once or twice."""
    if mode == "nearest":  # only of small images, which another kernel resizes
        is_small = len(sizes) == 2 and sum(sizes) <= SMALL
        return is_small and outputs in (inputs, 2 * inputs)
    return outputs == inputs and (mode == "linear" or antialias)
