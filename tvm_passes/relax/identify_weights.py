"""Give constant weights of convolutions an id, by which a library knows that it has packed them."""

from __future__ import annotations

import tvm
from tvm.ir import Expr
from tvm.relax.dpl import is_op

from ..convolution.fused_call import FusedCall, digest_of
from ..engine.contract import NO_MATCH, Answer, Match, Rule
from .rule_pass import rule_pass


class OfConstantWeights(Rule):
    """Name the weights of a `topi_ext.conv2d_nhwc` by a digest of their bytes.

    Why legal: the id says that weights are the same where it is the same, and these are constants.
    """

    pattern = is_op("topi_ext.conv2d_nhwc")(varg_default_wildcard=True)

    def where(self, match: Match) -> bool:
        return isinstance(match.root.args[1], tvm.ir.GenericConst)

    def plan(self, match: Match) -> str | Answer:
        found = digest_of(match.root.args[1].value)
        return NO_MATCH if str(match.root.attrs["weight_id"]) == found else found

    def rewrite(self, match: Match, plan: str) -> Expr:
        call = FusedCall(match.root)
        call.weight_id = plan
        return call.call()


def IdentifyWeights() -> tvm.transform.Pass:
    """Let oneDNN pack constant weights of `topi_ext.conv2d_nhwc` once, and not in each call.

    It comes last, since an id is that of the weights as they are now: whatever changes weights drops it.
    """
    return rule_pass("IdentifyWeights", OfConstantWeights())
