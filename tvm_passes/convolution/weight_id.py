"""The id of constant weights, in graphs of either TVM."""

from __future__ import annotations

import hashlib
from typing import Any

from ..engine.contract import NO_MATCH, Answer, Expr, Match, Rule
from .fused_call import FusedCall


class OfConstantWeights(Rule):
    """Name the weights of a `topi_ext.conv2d_nhwc` by a digest of their bytes.

    Why legal: the id says that weights are the same where it is the same, and these are constants.
    """

    def array(self, weights: Expr) -> Any:
        """The array of weights, or None where they are not a constant."""
        raise NotImplementedError

    def where(self, match: Match) -> bool:
        return self.array(match.root.args[1]) is not None

    def plan(self, match: Match) -> str | Answer:
        found = _digest_of(self.array(match.root.args[1]))
        return NO_MATCH if str(match.root.attrs["weight_id"]) == found else found

    def rewrite(self, match: Match, plan: str) -> Expr:
        call = FusedCall(match.root)
        call.weight_id = plan
        return call.call()


def _digest_of(weights: Any) -> str:
    digest = hashlib.blake2b(weights.numpy().tobytes(), digest_size=12)
    digest.update(f"{weights.dtype} {weights.shape}".encode())
    return digest.hexdigest()
