"""Resizing along one axis: which input elements each output element sums, and by which weights.

Every resize is separable. A frontend computes the coordinates as its own framework does, in its precision.
They are those of element centres: element i of the input is at i. Elements off the input are read from its
border.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MAX_BITS = 22  # of weights in integers


@dataclass(frozen=True)
class Taps:
    """How an axis is resized: for each output element, the input elements it sums, and their weights."""

    indices: np.ndarray  # (outputs, taps), all inside the input
    weights: np.ndarray | None  # (outputs, taps); None: one tap each, copied
    size: int  # of the input

    def matrix(self) -> np.ndarray:
        """The weights as a matrix, (outputs, inputs)."""
        assert self.weights is not None
        matrix = np.zeros((len(self.indices), self.size), self.weights.dtype)
        np.add.at(matrix, (np.arange(len(self.indices))[:, None], self.indices), self.weights)
        return matrix

    def in_integers(self) -> tuple[Taps, int]:
        """The weights in 16 bits, multiplied by a power of two, and the exponent of that."""
        assert self.weights is not None
        # Elements off the input are at its border: each is read once, with the sum of its weights.
        is_same = self.indices[:, :, None] == self.indices[:, None, :]
        is_first = is_same.argmax(-1) == np.arange(self.indices.shape[1])
        weights = np.where(is_first, (is_same * self.weights[:, None]).sum(-1), 0)
        bits = 0
        while bits < MAX_BITS and int(weights.max() * 2 ** (bits + 1) + 0.5) < 1 << 15:
            bits += 1
        whole = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype("int32")
        return Taps(self.indices, whole, self.size), bits


def nearest(indices: np.ndarray, size: int) -> Taps:
    """Copy the elements at `indices`."""
    return Taps(np.clip(indices.astype("int64"), 0, size - 1)[:, None], None, size)


def linear(coordinates: np.ndarray, size: int) -> Taps:
    """Interpolate linearly between the two neighbours of each coordinate."""
    return _around(coordinates, size, (0, 1), lambda distance: 1 - distance)


def cubic(coordinates: np.ndarray, size: int, a: float, exclude_outside: bool = False) -> Taps:
    """Interpolate by the cubic convolution kernel with coefficient `a` over four neighbours.

    With `exclude_outside`, neighbours off the input have weight 0, and the other weights sum to 1.
    """
    taps = _around(coordinates, size, (-1, 0, 1, 2), cubic_kernel(a))
    if not exclude_outside:
        return taps
    assert taps.weights is not None
    places = np.floor(coordinates).astype("int64")[:, None] + np.arange(-1, 3)
    weights = np.where((places >= 0) & (places < size), taps.weights, 0)
    return Taps(taps.indices, weights / weights.sum(axis=1, keepdims=True), size)


def antialiased(
    coordinates: np.ndarray,
    scale: float,
    size: int,
    kernel: Callable[[np.ndarray], np.ndarray],
    support: float,
    exclude_outside: bool = True,
) -> Taps:
    """Interpolate by a kernel that is stretched by `scale`, inputs per output, if that is above 1.

    The weights sum to 1. `support` is the kernel's radius. With `exclude_outside`, elements off the input
    have weight 0, and so has everything where only such elements are in reach.
    """
    stretch = coordinates.dtype.type(max(scale, 1.0))
    centers = coordinates + coordinates.dtype.type(0.5)
    reach = coordinates.dtype.type(support) * stretch
    first = np.floor(centers - reach + 0.5).astype("int64")
    end = np.floor(centers + reach + 0.5).astype("int64")
    if exclude_outside:
        first, end = np.maximum(first, 0), np.minimum(end, size)
    places = first[:, None] + np.arange(max(int((end - first).max()), 1))
    weights = kernel((places + 0.5 - centers[:, None]) / stretch)
    weights = np.where(places < end[:, None], weights, 0).astype(coordinates.dtype)
    total = weights.sum(axis=1, keepdims=True)
    return Taps(np.clip(places, 0, size - 1), weights / np.where(total == 0, 1, total), size)


def linear_kernel(distance: np.ndarray) -> np.ndarray:
    """The weight at a distance, linearly falling to 0 at 1."""
    return np.maximum(1 - np.abs(distance), 0)


def cubic_kernel(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """The weight at a distance, by the cubic convolution kernel with coefficient `a`."""

    def weight(distance: np.ndarray) -> np.ndarray:
        x = np.abs(distance)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((x - 5) * x + 8) * x * a - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return weight


def _around(
    coordinates: np.ndarray,
    size: int,
    neighbours: tuple[int, ...],
    kernel: Callable[[np.ndarray], np.ndarray],
) -> Taps:
    before = np.floor(coordinates)
    fraction = (coordinates - before)[:, None]
    distances = np.abs(fraction - np.asarray(neighbours, coordinates.dtype))
    indices = before.astype("int64")[:, None] + np.asarray(neighbours)
    return Taps(np.clip(indices, 0, size - 1), kernel(distances).astype(coordinates.dtype), size)
