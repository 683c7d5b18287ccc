"""The activations that are known, in float64, and which of them a function is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

MAX_OPERATORS = 16  # that spell an activation
POINTS = np.concatenate([np.linspace(-30, 30, 1201), [-1e6, -1e3, -100, -50, 50, 100, 1e3, 1e6]])
NEAR = np.array([-1e-3, 0, 1e-3])  # of a constant, where a function may change its course

erf = np.vectorize(math.erf, otypes=["float64"])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


KNOWN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": _gelu_tanh,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


def known_activation(compute: Callable[[np.ndarray], np.ndarray], around: Sequence[float]) -> str | None:
    """The name of the activation that a function of one number computes, or None.

    It is compared at many points, among them those around the constants `around` and their negatives.
    """
    points = np.concatenate([POINTS, *(sign * each + NEAR for each in around for sign in (1, -1))])
    with np.errstate(all="ignore"):
        found = compute(points)
        for name, function in KNOWN.items():
            if _are_close(found, function(points), points):
                return name
    return None


def _are_close(found: np.ndarray, wanted: np.ndarray, points: np.ndarray) -> bool:
    """Where a spelling overflows, far from 0, it need not be as good as the function that it spells."""
    if found.shape != points.shape:
        return False
    overflows = ~np.isfinite(found) & (abs(points) > 30)
    return bool((overflows | np.isclose(found, wanted, rtol=1e-6, atol=1e-7)).all())
