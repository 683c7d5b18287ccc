"""Take the rounding out of a network that was quantized elsewhere, and keep its bounds as clips."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

from ..analysis.evaluate import value_of
from ..analysis.operators import MOVED, SAME, known_of
from ..engine.expressions import op_name, operands
from ..engine.match import any_op
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
ROUNDING = 1e-6  # of the inverse of a scale in float32
Range = tuple[float, float]


class ConstantInFloat(Rule):
    """Replace a dequantized constant, such as weights, with its value in float32.

    Why legal: it is the same number, computed now.
    """

    data, scale, zero = wildcard(), wildcard(), wildcard()
    pattern = is_op("qnn.dequantize")(data, scale, zero)

    def plan(self, match: Match) -> list[np.ndarray] | Answer:
        # PyTorch's weights may still be quantized here, and their zero points are cast.
        found = [value_of(each) for each in (match.data, match.scale, match.zero)]
        values = [value for value in found if value is not None]
        return values if len(values) == len(found) else NO_MATCH

    def rewrite(self, match: Match, plan: list[np.ndarray]) -> relay.Expr:
        value, *parameters = plan
        along = [1] * value.ndim
        if any(each.size > 1 for each in parameters):
            along[int(match.root.attrs.axis) % value.ndim] = -1
        scale, zero = (each.reshape(along if each.size > 1 else ()) for each in parameters)
        return relay.const(((value.astype("int32") - zero) * scale).astype("float32"))


class ClipForRoundTrip(Rule):
    """Replace `dequantize(quantize(x))` of one scale and zero point with `clip(x)`.

    Why legal: it gives the multiple of the scale that is nearest to x, and one of its ends for what is beyond
    them. The clip gives x, and the same ends: without the rounding, as requested.
    """

    x, scale, inverse = wildcard(), wildcard(), wildcard()
    # As the frontends spell it: in the sum the last bit of a float32 is worth 1. ONNX divides by the scale,
    # PyTorch multiplies by its inverse.
    scaled = is_op("divide")(x, scale) | is_op("multiply")(x, inverse)
    sum_ = is_op("add")(is_op("clip")(scaled), is_constant())
    centred = is_op("subtract")(is_op("reinterpret")(sum_), is_constant())
    zero = wildcard()
    shifted = is_op("add")(centred, zero) | centred
    limited = is_op("clip")(shifted)
    spelt = is_op("cast")(limited)
    own_zero = wildcard()
    stock = is_op("qnn.quantize")(x, scale, own_zero)
    quantized = spelt | stock
    back_scale, back_zero = wildcard(), wildcard()
    pattern = is_op("qnn.dequantize")(quantized, back_scale, back_zero)

    def plan(self, match: Match) -> Range | Refusal:
        dtype = match.quantized.checked_type.dtype
        back, back_zero = _number(match.back_scale), _number(match.back_zero)
        scale, zero = _scale(match), _number(match.zero or match.own_zero or relay.const(0))
        if scale is None or zero is None or back is None:
            return Refusal("the scale is not one for the whole tensor, known before")
        if zero != back_zero or not math.isclose(scale, back, rel_tol=ROUNDING):
            return Refusal("the tensor is dequantized with another scale or zero point")
        if dtype not in LIMITS or not back > 0:
            return Refusal(f"the tensor is quantized to {dtype} with the scale {back}")
        low, high = LIMITS[dtype] if match.limited is None else _ends(match.limited)
        return (low - zero) * back, (high - zero) * back

    def rewrite(self, match: Match, plan: Range) -> relay.Expr:
        return relay.clip(match.x, *plan)


class ClipOfClip(Rule):
    """Replace two clips in a row, of which one may be a relu, with one.

    Why legal: what is beyond an end of either becomes the nearer of these, and both ranges overlap.
    """

    x = wildcard()
    inner = any_op(("clip", "nn.relu"), x)
    pattern = any_op(("clip", "nn.relu"), inner)

    def plan(self, match: Match) -> Range | Refusal | Answer:
        if op_name(match.root) == op_name(match.inner) == "nn.relu":
            return NO_MATCH
        if match.used_elsewhere(match.inner):
            return Refusal("the tensor between two clips has other users")
        lows, highs = zip(_ends(match.inner), _ends(match.root))
        return (max(lows), min(highs)) if max(lows) <= min(highs) else NO_MATCH

    def rewrite(self, match: Match, plan: Range) -> relay.Expr:
        return relay.clip(match.x, *plan)


class ClippedBefore(Rule):
    """Drop a clip of what is inside its ends.

    Why legal: the elements are those of a clipped tensor, moved or the largest of some, and its ends are
    inside those of this clip.
    """

    x = wildcard()
    pattern = is_op("clip")(x)

    def plan(self, match: Match) -> Answer:
        inner, outer = range_of(match.x), range_of(match.root)
        if inner is None or outer is None:
            return NO_MATCH
        return LEGAL if outer[0] <= inner[0] and inner[1] <= outer[1] else NO_MATCH

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return match.x


class FloatFromQDQ(RulePass):
    """Replace the quantization of an imported network by float32, in which bounds of tensors are clips.

    ONNX Runtime and PyTorch write a quantized network as one in float32 in which QuantizeLinear and
    DequantizeLinear are around each tensor. All that passes know about networks holds between these, but they
    see only what is between two. Without the rounding they see the whole, and `InInt8` rounds again
    where it gains from int8: `tvm_passes.quantize.calibration_of` reads the bounds from the clips.

    >>> x, scale, zero = relay.var("x", shape=(1, 4, 4, 8)), relay.const(0.1), relay.const(0)
    >>> y = relay.qnn.op.dequantize(relay.qnn.op.quantize(x, scale, zero), scale, zero)
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.FloatFromQDQ()(mod)))
    def @main(%x: Tensor[(1, 4, 4, 8), float32]) -> Tensor[(1, 4, 4, 8), float32] {
      clip(%x, a_min=-12.8f, a_max=12.7f)
    }
    """

    rules = (ConstantInFloat, ClipForRoundTrip, ClipOfClip, ClippedBefore)


def range_of(
    expr: relay.Expr, of_operand: Callable[[relay.Expr], Range | None] | None = None
) -> Range | None:
    """The ends between which a tensor was clipped, if it was, perhaps before its elements were moved.

    `of_operand` says it of what is moved; by default, this does.
    """
    name = op_name(expr)
    if name == "clip":
        low, high = _ends(expr)
        return (low, high) if low <= high else None  # else it gives `high` for all
    if name != "nn.max_pool2d" and known_of(expr).elements not in (SAME, MOVED):
        return None
    moved = operands(expr) if name == "concatenate" else expr.args[:1]
    ranges = [found for found in map(of_operand or range_of, moved) if found is not None]
    if len(ranges) < len(moved):
        return None
    lows, highs = zip(*ranges)
    return min(lows), max(highs)


def _number(expr: relay.Expr) -> float | None:
    """The number that an expression of constants is, or None if it is known at run time, or several."""
    value = value_of(expr)
    return None if value is None or value.size != 1 else float(value.reshape(()))


def _scale(match: Match) -> float | None:
    if match.inverse is None:
        return _number(match.scale)
    inverse = _number(match.inverse)
    return 1 / inverse if inverse else None


def _ends(clip: relay.Call) -> Range:
    """The ends of a clip or a relu."""
    if op_name(clip) == "nn.relu":
        return 0.0, math.inf
    return float(clip.attrs.a_min), float(clip.attrs.a_max)
