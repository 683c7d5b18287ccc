"""The distribution of a tensor's magnitudes over many batches, and the bound that quantizes it best.

A symmetric int8 has 127 steps from 0 to the bound; what is above is saturated. A large bound makes the steps
coarse, a small one cuts the largest values off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .numbers import LEAST_BOUND, LEVELS

BINS = 4096
CANDIDATES = 200  # bounds that are tried


class Histogram:
    """How often magnitudes occur: equal bins from 0 to `limit`, which is doubled when a larger one comes."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, "int64")
        self.limit = 0.0
        self.maximum = 0.0
        self.batches = 0

    def add(self, values: np.ndarray, maximum: float) -> None:
        """Count values of a batch; `maximum` is the largest magnitude, also of those not among them."""
        if not np.isfinite(maximum):
            raise ValueError("a tensor has values that are not finite: int8 has no bound for them")
        self.batches += 1
        self.maximum = max(self.maximum, maximum)
        if self.maximum == 0:
            self.counts[0] += values.size
            return
        if self.limit == 0:
            self.limit = self.maximum  # all before were 0, and are in the first bin
        while self.limit < self.maximum:
            halved = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([halved, np.zeros(BINS - len(halved), "int64")])
            self.limit *= 2
        self.counts += np.histogram(np.abs(values), BINS, (0, self.limit))[0]

    @property
    def centers(self) -> np.ndarray:
        return (np.arange(BINS) + 0.5) * (self.limit / BINS)

    def bound(self, method: str) -> float:
        """The bound by one of `METHODS`; 0 if all values are 0, or too small for a step."""
        return METHODS[method](self) if self.maximum >= LEAST_BOUND else 0.0

    def candidates(self) -> np.ndarray:
        """Numbers of bins that a bound may hold, the last of them all that occur."""
        used = int(np.flatnonzero(self.counts)[-1]) + 1
        return np.unique(np.linspace(min(used, LEVELS + 1), used, CANDIDATES).astype(int))


def _of_maximum(histogram: Histogram) -> float:
    return histogram.maximum


def _of_percentile(histogram: Histogram, share: float = 0.9999) -> float:
    """As much as this share of the values does not exceed."""
    shares = np.cumsum(histogram.counts) / histogram.counts.sum()
    bins = int(np.searchsorted(shares, share)) + 1
    return min(histogram.maximum, bins * histogram.limit / BINS)


def _of_least_squares(histogram: Histogram) -> float:
    """The bound of the smallest mean squared error."""
    centers, counts = histogram.centers, histogram.counts
    bounds = histogram.candidates() * (histogram.limit / BINS)
    steps = bounds[:, None] / LEVELS
    rounded = np.minimum(np.rint(centers / steps), LEVELS) * steps
    errors = (counts * (rounded - centers) ** 2).sum(1)
    return min(histogram.maximum, float(bounds[np.argmin(errors)]))


def _of_entropy(histogram: Histogram) -> float:
    """The bound that keeps the most information: of the smallest Kullback-Leibler divergence.

    The distribution with all above the bound added to its last bin is compared with the one in which each
    level's values are spread evenly over those of its bins that occur. The many zeros behind a relu, which
    any bound keeps, would outweigh everything else, so the first bin counts as the second one.
    """
    candidates, counts = histogram.candidates(), histogram.counts.copy()
    counts[0] = min(counts[0], counts[1])
    divergences = [_divergence(counts, bins) for bins in candidates]
    return min(histogram.maximum, float(candidates[np.argmin(divergences)] * histogram.limit / BINS))


def _divergence(counts: np.ndarray, bins: int) -> float:
    inside = counts[:bins].astype("float64")
    if not inside.any():
        return math.inf
    clipped = inside.copy()
    clipped[-1] += counts[bins:].sum()
    starts = np.unique(np.arange(LEVELS + 1) * bins // (LEVELS + 1))
    occurs = inside > 0
    level = np.searchsorted(starts, np.arange(bins), "right") - 1
    mean = np.add.reduceat(inside, starts) / np.maximum(np.add.reduceat(occurs, starts, dtype="int64"), 1)
    spread = np.where(occurs, mean[level], 0)
    p, q = clipped / clipped.sum(), spread / spread.sum()
    q = np.where(q > 0, q, 1e-12)  # the last bin may hold nothing but what is cut off
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


METHODS: dict[str, Callable[[Histogram], float]] = {
    "mse": _of_least_squares,
    "entropy": _of_entropy,
    "percentile": _of_percentile,
    "maximum": _of_maximum,
}
