"""Fold factors and batch norms into the weights of the convolutions next to them."""

from __future__ import annotations

from collections import Counter

import numpy as np

import tvm
from tvm import relay

from ..analysis.constants import fold_constants
from ..engine.expressions import location
from ..engine.graph import Graph, calls_of, relay_functions
from ..engine.module_pass import Pass
from ..engine.report import PassReport
from ..engine.stock import apply_stock

BATCH_NORMS, FACTORS_BEHIND, FACTORS_BEFORE = "BatchNorms", "FactorsBehind", "FactorsBefore"
FOLDS = {
    FACTORS_BEHIND: relay.transform.BackwardFoldScaleAxis,
    FACTORS_BEFORE: relay.transform.ForwardFoldScaleAxis,
}
MAX_GROWTH = 1e3  # of the largest constant


class FoldIntoConvolutions(Pass):
    """TVM's own passes that fold factors, such as those of batch norm, into the weights before or after.

    They would also fold computed factors, such as those of channel attention, and so turn constant weights
    into ones computed at run time: then that step is left out. So it is where a factor before a convolution
    is so near zero that what is divided by it becomes infinite, or too large, or may be so for all that is
    known before weights are bound; beside a convolution of integers or one whose results have another type
    than its weights; and where TVM stops.

    Why legal: a convolution is linear, so a factor per filter or per channel can be part of the weights.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((4, 8, 3, 3), "float32"))
    >>> gamma, beta, mean, variance = (relay.const(np.ones(4, "float32")) for _ in range(4))
    >>> norm = relay.nn.batch_norm(relay.nn.conv2d(x, weight), gamma, beta, mean, variance)
    >>> mod = tvm.IRModule.from_expr(norm[0])
    >>> print(tvm_passes.as_text(tvm_passes.FoldIntoConvolutions()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 4, 4, 8), float32] {
      %0 = nn.conv2d(%x, const[(4, 8, 3, 3), float32], padding=[0, 0, 0, 0]);
      add(%0, const[(4, 1, 1), float32])
    }
    """

    def __init__(self) -> None:
        super().__init__(_folded, (BATCH_NORMS, *FOLDS))


def _folded(mod: tvm.IRModule, report: PassReport) -> tvm.IRModule:
    norms = _places(mod, "nn.batch_norm")
    plain = apply_stock(
        relay.transform.InferType(),
        relay.transform.SimplifyInference(),
        relay.transform.CanonicalizeOps(),
        to=mod,
    )
    for place in (norms - _places(plain, "nn.batch_norm")).elements():
        report.rewrote(BATCH_NORMS, place)
    mod = fold_constants(plain)
    if not all(map(_is_of_one_float, _convolutions(mod))):
        for rule in FOLDS:
            report.refused(rule, "", "a convolution is of integers, or its results have another type")
        return mod
    for rule, fold in FOLDS.items():
        try:
            folded = fold_constants(apply_stock(fold(), to=mod))
        except (
            tvm.error.InternalError
        ):  # TVM moves a factor along one axis of the data for all that read them
            report.refused(rule, "", "TVM cannot fold where convolutions of two layouts read the same data")
            continue
        if _constant_weights(folded) != _constant_weights(mod):
            report.refused(rule, "", "constant weights would become ones computed at run time")
            continue
        if _grow(mod, folded):
            report.refused(rule, "", "a factor near zero would make another constant too large")
            continue
        if _unknown_divisors(folded) > _unknown_divisors(mod):
            report.refused(rule, "", "a factor that is not known may be 0: bind the weights to the module")
            continue
        for place in (_places(mod, "multiply") - _places(folded, "multiply")).elements():
            report.rewrote(rule, place)
        mod = folded
    return mod


def _places(mod: tvm.IRModule, name: str) -> Counter[str]:
    """Where in the source model an operator is called, and how often."""
    return Counter(location(call) for call in calls_of(mod, name))


def _grow(before: tvm.IRModule, after: tvm.IRModule) -> bool:
    """Whether constants have become infinite, NaN, or so large that they lose what is added to them.

    A factor is moved past a summand by dividing the summand.
    """
    (not_finite, largest), (not_finite_then, largest_then) = map(_magnitudes, (before, after))
    return not_finite_then > not_finite or largest_then > MAX_GROWTH * max(largest, 1.0)


def _unknown_divisors(mod: tvm.IRModule) -> int:
    """How many divisions are by what is no constant: one by 0 shows in no constant."""
    return sum(not isinstance(call.args[1], relay.Constant) for call in calls_of(mod, "divide"))


def _magnitudes(mod: tvm.IRModule) -> tuple[int, float]:
    """Of all constants of floating point: how many numbers are not finite, and the largest of the others."""
    not_finite, largest = 0, 0.0
    for node in (node for function in relay_functions(mod).values() for node in Graph(function).nodes):
        if not isinstance(node, relay.Constant) or not node.checked_type.dtype.startswith("float"):
            continue
        numbers = np.abs(node.data.numpy())
        is_finite = np.isfinite(numbers)
        not_finite += int(numbers.size - is_finite.sum())
        largest = max(largest, float(numbers.max(initial=0, where=is_finite)))
    return not_finite, largest


def _convolutions(mod: tvm.IRModule) -> list[relay.Call]:
    """What TVM's passes fold factors into."""
    return [call for name in ("nn.conv1d", "nn.conv2d", "nn.conv3d") for call in calls_of(mod, name)]


def _is_of_one_float(conv: relay.Call) -> bool:
    """Whether its weights can take in a factor of its results."""
    dtype = conv.args[1].checked_type.dtype
    return "float" in dtype and dtype == conv.checked_type.dtype


def _constant_weights(mod: tvm.IRModule) -> int:
    """How many convolutions have constant weights."""
    return sum(isinstance(call.args[1], relay.Constant) for call in calls_of(mod, "nn.conv2d"))
