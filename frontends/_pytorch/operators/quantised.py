"""What operators of PyTorch's quantized tensors have in common."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relay

from . import functions
from .converter import Converter, Inputs


def given(converter: Converter, inputs: Inputs) -> Inputs:
    """What an operator was given: TVM appends the scale and zero point of a tensor that was quantized before.

    It does so to means and resizes, of what is dequantized by then, too, but not of bytes beside it.
    """
    if not converter.has_quantized:
        return inputs
    scale, zero_point = inputs[-2:]
    is_appended = isinstance(zero_point, relay.Expr) or (type(scale), type(zero_point)) == (float, int)
    return inputs[:-2] if len(inputs) > 2 and is_appended else inputs


def is_quantised(converter: Converter, inputs: Inputs) -> bool:
    return converter.is_quantized_tensor(inputs[0]) and len(given(converter, inputs)) < len(inputs)


def to_nearest(
    compute: Callable[[relay.Expr], relay.Expr], data: relay.Expr, zero_point: relay.Expr | int = 0
) -> relay.Expr:
    """What is computed of quantized numbers as they are, to the nearest step, of halves to the even one.

    PyTorch averages the numbers as they are, but resizes them without their zero point: if that is odd, other
    halves are even.
    """
    is_known = isinstance(zero_point, int)
    zero = relay.const(zero_point, "float32") if is_known else relay.cast(zero_point, "float32")
    rounded = functions.round_("float32", compute(relay.cast(data, "float32")) - zero)
    return relay.cast(rounded + zero, "uint8")
