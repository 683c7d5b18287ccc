"""Rules that have `topi_ext.conv2d_nhwc` compute the activation that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import or_

import numpy as np

from topi_ext.conv2d_nhwc.problem import GivenActivation

from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.known_activations import MAX_OPERATORS, known_activation
from ..convolution.fused_call import FusedCall, why_no_activation, why_not_taken_in
from ..engine.contract import NO_MATCH, Answer, Match, Refusal
from .graph import ELEMENTWISE, FLOATS, bounds_of, dtype_of, op_name, tensors_of
from .take_in import CONVOLUTION, Grow, TakeIn, has_type_of, of_channels, of_filters, why_complete

ACTIVATIONS: dict[str, Callable[[Expr], GivenActivation]] = {
    "relax.nn.relu": lambda call: "relu",
    "relax.nn.leakyrelu": lambda call: ("leaky_relu", float(call.attrs.alpha)),
    "relax.clip": lambda call: ("clip", *bounds_of(call)),
    "relax.nn.gelu": lambda call: "gelu",
    "relax.nn.gelu_tanh": lambda call: "gelu_tanh",
    "relax.nn.silu": lambda call: "silu",
    "relax.sigmoid": lambda call: "sigmoid",
    "relax.tanh": lambda call: "tanh",
}


class WithActivation(Grow):
    """Fold in an activation, as the first one or the final one."""

    pattern = reduce(or_, (is_op(name)(Grow.conv, varg_default_wildcard=True) for name in ACTIVATIONS))

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        activation = ACTIVATIONS[op_name(match.root)](match.root)
        return why_not_taken_in(activation) or _activated(call, activation)


class WithPRelu(TakeIn):
    """Fold in `where(x > 0, x, slope * x)`, a slope for each channel or for all.

    Why legal: nothing else uses what is in between. In half precision, the product is no longer rounded.
    """

    conv = is_op(CONVOLUTION)(varg_default_wildcard=True)
    slope, zero = wildcard(), wildcard()
    mask = is_op("relax.greater")(conv, zero)
    scaled = is_op("relax.multiply")(slope, conv) | is_op("relax.multiply")(conv, slope)
    pattern = is_op("relax.where")(mask, conv, scaled)

    def where(self, match: Match) -> bool:
        bound = match.graph.constant(match.zero)
        return bound is not None and not bound.any() and match.graph.constant(match.slope) is not None

    def plan(self, match: Match) -> FusedCall | Refusal:
        slope, call = of_channels(match, match.slope), FusedCall(match.conv)
        if slope is None or not has_type_of(match.root, match.conv):
            return Refusal("the slope is not one for each channel")
        if match.used_elsewhere(match.conv, match.mask, match.scaled):
            return Refusal("the result of the convolution has other users")
        if call.activation or call.final_activation or call.residual is not None:
            return Refusal("it comes after an activation or a residual")
        call.activation, call.slope = "prelu", relax.const(of_filters(call, slope).astype("float32"))
        return why_complete(call) or call


class WithSpelledActivation(TakeIn):
    """Fold in an activation that several operators compute, such as `x * clip(x + 3, 0, 6) / 6`.

    Why legal: they are evaluated at many points, among them those around each of their constants, and are
    the activation there; nothing else uses what they compute in between. In half precision, results in
    between are no longer rounded.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:  # a network in half precision may compute it in float32
        return op_name(match.root) in ("relax.multiply", "relax.divide", "relax.astype")

    def plan(self, match: Match) -> FusedCall | Answer | Refusal:
        region = _spelled(match)
        if region is None:
            return NO_MATCH
        conv, between, around = region
        users = [user for each in (conv, *between) if each != match.root for user in match.graph.users(each)]
        if not has_type_of(match.root, conv) or any(user not in between for user in users):
            return NO_MATCH

        def compute(points: np.ndarray) -> np.ndarray:
            return match.graph.evaluated(match.root, {conv: points})

        name, call = known_activation(compute, around), FusedCall(conv)
        return NO_MATCH if name is None else why_complete(call) or _activated(call, name)


def _activated(call: FusedCall, activation: GivenActivation) -> FusedCall | Refusal:
    refusal = why_no_activation(call)
    if refusal is None:
        call.activate(activation)
    return refusal or call


def _spelled(match: Match) -> tuple[Expr, list[Expr], list[float]] | None:
    """The convolution below the root, what is computed in between, and the constants there, all scalars."""
    graph = match.graph
    convolutions: list[Expr] = []
    between: list[Expr] = []
    around: list[float] = []
    waiting = [match.root]
    while waiting:
        value = graph.value(waiting.pop())
        array = graph.constant(value)
        if array is not None:
            if array.size != 1:
                return None
            around.append(float(array.reshape(-1)[0]))
        elif op_name(value) == CONVOLUTION:
            convolutions.append(value)
        elif op_name(value) in ELEMENTWISE and dtype_of(value) in FLOATS and len(between) < MAX_OPERATORS:
            between.append(value)
            around += (
                [b for b in bounds_of(value) if math.isfinite(b)] if op_name(value) == "relax.clip" else []
            )
            waiting += tensors_of(value)
        else:
            return None
    return (convolutions[0], between, around) if len(set(convolutions)) == 1 else None
