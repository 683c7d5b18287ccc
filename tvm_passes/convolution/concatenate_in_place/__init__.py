"""Write the results of convolutions where they are concatenated, and read them there."""

from __future__ import annotations

from topi_ext.conv2d_nhwc_in_place.op import ALIGNMENT

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...analysis.targets import is_for_gpu, target_or_current
from ...engine.expressions import known_shape
from ...engine.match import any_op
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass, for_target
from ..in_place_call import NAMES, InPlaceCall, sliced_convolution, why_not_in_place
from .buffers import written_in_place


class _OnGPU(Rule):
    target: tvm.target.Target | None = None

    def where(self, match: Match) -> bool:
        return is_for_gpu(self.target)


class WriteInPlace(_OnGPU):
    """Replace `concatenate(conv2d_nhwc(x), conv2d_nhwc(y))` with two calls of `conv2d_nhwc_in_place`.

    The second one has the first one as its destination: both write some channels of the same tensor. What
    reads one of the results, or a concatenation of neighbouring ones, gets a slice of the tensor. A tensor
    that is not the result of a convolution can be the first one: it is padded to the size of the whole.

    Why legal: each convolution computes the same, and the last call returns all results. Each call comes
    where the convolution was, so what it reads is computed before. Slices are those of a call by which what
    they take is written.
    """

    pattern = is_op("concatenate")(wildcard()) | is_op("topi_ext.conv2d_nhwc")(None)

    def plan(self, match: Match) -> relay.Expr | Answer | Refusal:
        """What the concatenation, or the convolution, becomes."""
        notes = match.graph.notes
        if WriteInPlace not in notes:
            notes[WriteInPlace] = written_in_place(match.graph)
        return notes[WriteInPlace].get(match.root, NO_MATCH)

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class ReadInPlace(_OnGPU):
    """Replace `conv2d_nhwc(strided_slice(conv2d_nhwc(x)))` with `conv2d_nhwc_in_place(conv2d_nhwc(x))`.

    Why legal: it reads the channels that the slice has, as data or as the residual.
    """

    pattern = any_op(NAMES, None)

    def plan(self, match: Match) -> InPlaceCall | Answer | Refusal:
        """The call that reads where the slices read."""
        call, is_sliced = InPlaceCall(match.root), False
        for name in ("data", "residual"):
            sliced = sliced_convolution(getattr(call, name))
            if sliced is None:
                continue
            extents = sliced.first, known_shape(getattr(call, name))[3], known_shape(sliced.whole)[3]
            if any(extent % ALIGNMENT for extent in extents):
                return Refusal(f"the channels of the slice are not in multiples of {ALIGNMENT}")
            setattr(call, name, sliced.whole)
            setattr(call, f"{name}_from", getattr(call, f"{name}_from") + sliced.first)
            is_sliced = True
        reason = why_not_in_place(match.root)
        if reason and is_sliced:
            return Refusal(reason)
        return call if is_sliced else NO_MATCH

    def rewrite(self, match: Match, plan: InPlaceCall) -> relay.Expr:
        return plan.call()


class ConcatenateInPlace(RulePass):
    """Write results of convolutions where they are concatenated, and read them there: nothing is copied.

    Dense blocks concatenate all results before each convolution, and other blocks half of their input with
    what they compute from the rest; in NHWC, each concatenation is a copy. `target`: the target to compile
    for, by default the current one; only CUDA has kernels for it. A result that something else reads, such as
    a pooling, would be copied for that, and is refused; so is a concatenation that TVM computes in the kernel
    that reads it.

    >>> x = relay.var("x", shape=(1, 32, 32, 16), dtype="float16")
    >>> first, second = (relay.const(np.ones((8, 1, 1, count), "float16")) for count in (16, 8))
    >>> y = topi_ext.conv2d_nhwc(x, first)
    >>> y = relay.concatenate([y, topi_ext.conv2d_nhwc(y, second)], 3)
    >>> mod = tvm.IRModule.from_expr(y)
    >>> after = tvm_passes.ConcatenateInPlace("cuda -arch=sm_90")(mod)
    >>> for call in tvm_passes.engine.calls_of(after, "topi_ext.conv2d_nhwc_in_place"):
    ...     print(call.checked_type, call.attrs["data_from"], call.attrs["result_from"])
    Tensor[(1, 32, 32, 16), float16] 0 0
    Tensor[(1, 32, 32, 16), float16] 0 8
    """

    def __init__(self, target: str | tvm.target.Target | None = None) -> None:
        target = target_or_current(target, type(self).__name__)
        self.rules = tuple(for_target(rule, target) for rule in (WriteInPlace, ReadInPlace))
        super().__init__()
