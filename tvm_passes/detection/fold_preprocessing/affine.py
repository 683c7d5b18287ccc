"""Arithmetic with a constant per channel, evaluated in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvm
from tvm import relay

from ...analysis.convolution import of_each_channel
from ...engine.expressions import op_name, static_shape
from ...engine.graph import Graph

ZERO = "a channel is multiplied by 0 or by a value that is not finite"
ARITHMETIC = ("add", "subtract", "multiply", "divide")


@dataclass(frozen=True)
class Affine:
    """`factor * pixel + summand`, for each channel."""

    factor: np.ndarray
    summand: np.ndarray

    @classmethod
    def of(cls, mean: Iterable[float], std: Iterable[float]) -> Affine:
        factor = 1 / np.array([float(value) for value in std])
        return cls(factor, -np.array([float(value) for value in mean]) * factor)

    def then(self, step: Step) -> Affine:
        """This map followed by another step."""
        k = step.constants
        if step.op == "add":
            return Affine(self.factor, self.summand + k)
        if step.op == "subtract" and step.from_constant:
            return Affine(-self.factor, k - self.summand)
        if step.op == "subtract":
            return Affine(self.factor, self.summand - k)
        with np.errstate(all="ignore"):
            k = k if step.op == "multiply" else 1 / k
            return Affine(self.factor * k, self.summand * k)

    @property
    def mean_and_std(self) -> dict[str, Any] | None:
        """The `mean` and `std` of `topi_ext.preprocess` that give this map, or None if there are none."""
        with np.errstate(all="ignore"):
            mean, std = -self.summand / self.factor, 1 / self.factor
        is_one = np.isfinite(mean).all() and np.isfinite(std).all() and std.all()
        return {"mean": list(mean), "std": list(std)} if is_one else None


@dataclass(frozen=True)
class Step:
    """An operator of ARITHMETIC between an image and one constant per channel."""

    op: str
    constants: np.ndarray
    from_constant: bool  # whether the image is the second argument

    @classmethod
    def of(cls, graph: Graph, call: relay.Call, channel_axis: int) -> tuple[Step, relay.Expr] | None:
        """The call as a step, and its image operand; None if the call is not such a step."""
        values = [folded(graph, argument) for argument in call.args]
        if sum(value is None for value in values) != 1 or call.checked_type.dtype != "float32":
            return None
        at = values.index(None)
        image, shape, from_constant = call.args[at], static_shape(call), at == 1
        if shape is None or static_shape(image) != shape:
            return None
        constants = of_each_channel(values[1 - at], len(shape), channel_axis)
        if constants is None:
            return None
        if from_constant and op_name(call) == "divide":
            return None
        constants = np.broadcast_to(constants.astype("float64"), (shape[channel_axis],))
        return cls(call.op.name, constants, from_constant), image


def folded(graph: Graph, expr: relay.Expr) -> relay.Constant | None:
    """A constant expression, folded to one constant; None if it is not constant."""
    notes = graph.notes.setdefault(folded, {})
    if expr not in notes:
        parts: list[relay.Expr] = []
        relay.analysis.post_order_visit(expr, parts.append)
        is_known = not any(isinstance(part, (relay.Var, relay.Function)) for part in parts)
        value = relay.transform.FoldConstantExpr(expr, tvm.IRModule()) if is_known else None
        notes[expr] = value if isinstance(value, relay.Constant) else None
    return notes[expr]
