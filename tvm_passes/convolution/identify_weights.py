"""Give constant weights of convolutions an id, by which a library knows that it has packed them."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass
from .fused_call import FusedCall, digest_of


class OfConstantWeights(Rule):
    """Name the weights of a `topi_ext.conv2d_nhwc` by a digest of their bytes.

    Why legal: the id says that weights are the same where it is the same, and these are constants.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(None)

    def where(self, match: Match) -> bool:
        return isinstance(match.root.args[1], relay.Constant)

    def plan(self, match: Match) -> str | Answer:
        found = digest_of(match.root.args[1].data)
        return NO_MATCH if str(match.root.attrs["weight_id"]) == found else found

    def rewrite(self, match: Match, plan: str) -> relay.Expr:
        call = FusedCall(match.root)
        call.weight_id = plan
        return call.call()


class IdentifyWeights(RulePass):
    """Let oneDNN pack constant weights of `topi_ext.conv2d_nhwc` once, and not in each call.

    It comes last, since an id is that of the weights as they are now: whatever changes weights drops it.

    >>> x, weight = relay.var("x", shape=(1, 6, 10, 8)), relay.const(np.ones((8, 1, 1, 8), "float32"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight))
    >>> print(tvm_passes.IdentifyWeights()(mod)["main"].body.attrs["weight_id"])
    95c9bbfba6b58f7e60fcac3d
    """

    rules = (OfConstantWeights,)
