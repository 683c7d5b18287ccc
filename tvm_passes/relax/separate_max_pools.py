"""Take the maximum of each window along its rows first."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.windows import in_two_pools, is_worth_two_pools
from ..engine.contract import Match, Rule
from .rule_pass import rule_pass


class MaximaOfMaxima(Rule):
    """Replace a max pool with one along the width, and one of its results along the height.

    Why legal: the maximum of a window is that of the maxima of its rows, in any type; NaN, if there is one.
    Padding, strides and dilation along an axis are those of the pool along it.
    """

    data = wildcard()
    pattern = is_op("relax.nn.max_pool2d")(data)

    def where(self, match: Match) -> bool:
        return is_worth_two_pools(match.root.attrs)

    def rewrite(self, match: Match, plan: object) -> Expr:
        return in_two_pools(relax.op.nn.max_pool2d, match.data, match.root.attrs)


def SeparateMaxPools() -> tvm.transform.Pass:
    """Compare fewer numbers for the maxima of large windows, such as those of spatial pyramid pooling."""
    return rule_pass("SeparateMaxPools", MaximaOfMaxima())
