"""What the rules have in common that have `topi_ext.conv2d_nhwc` compute what follows it, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topi_ext.conv2d_nhwc.op import takes_any_size

import tvm
from tvm.ir import Expr
from tvm.relax.dpl import is_op

from ..analysis.targets import is_for_cpu
from ..convolution.fused_call import QUANTIZED, FusedCall
from ..engine.contract import Match, Refusal, Rule
from .graph import dtype_of, lengths_of

CONVOLUTION = "topi_ext.conv2d_nhwc"


class TakeIn(Rule):
    """Replace the root with a call that computes it, too; the plan is that call."""

    def __init__(self, to_be: str | None = None) -> None:
        self.to_be = to_be

    def rewrite(self, match: Match, plan: FusedCall) -> Expr:
        return plan.call()


class Grow(TakeIn):
    """Fold what comes next into the call."""

    conv = is_op(CONVOLUTION)(varg_default_wildcard=True)

    def plan(self, match: Match) -> FusedCall | Refusal:
        if match.graph.users(match.conv) != [match.root]:  # also if the tensor added depends on it
            return Refusal("the result of the convolution has other users")
        if not has_type_of(match.root, match.conv):
            return Refusal("the next operator changes the type or the shape")
        call = FusedCall(match.conv)
        return why_complete(call) or self.grown(match, call)

    def grown(self, match: Match, call: FusedCall) -> FusedCall | Refusal:
        """The call with the root folded in, or why the operator does not do that in this order."""
        raise NotImplementedError


def why_complete(call: FusedCall) -> Refusal | None:
    """Why the operator does nothing after what it does already.

    What it does to each result, it may do before a shuffle or behind it.
    """
    return Refusal(QUANTIZED) if call.is_quantizing else None


def why_no_kernel_of(
    images: Sequence[int | None], dtype: str, target: tvm.target.Target | None
) -> Refusal | None:
    """Why the operator has no kernel for images in NHWC, of which some lengths are not known."""
    if None in images[1:3] and not takes_any_size(dtype, target):
        return Refusal("the size of the images is dynamic, for which the target has no kernel")
    if images[0] is None and not is_for_cpu(target):
        return Refusal("the batch is dynamic, for which the target has no kernel")
    return None


def has_type_of(one: Expr, other: Expr) -> bool:
    """Whether TVM can prove it of the lengths that are known only at run time."""
    lengths = lengths_of(one)
    return dtype_of(one) == dtype_of(other) and lengths is not None and lengths == lengths_of(other)


def of_channels(match: Match, expr: Expr) -> np.ndarray | None:
    """A constant beside the convolution as a vector over the channels, in float64; None where it is none."""
    array, channels = match.graph.constant(expr), int(match.conv.ty.shape.values[3])
    if array.size not in (1, channels) or (array.size > 1 and array.shape[-1] != channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype("float64"), channels)


def of_filters(call: FusedCall, vector: np.ndarray) -> np.ndarray:
    """What there is for each channel of the result, for each filter."""
    return np.tile(vector, call.block_size**2)
