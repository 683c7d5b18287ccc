"""Take the maximum of each window along its rows first."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.windows import in_two_pools, is_worth_two_pools
from ..engine.rule import Match, Rule, RulePass


class MaximaOfMaxima(Rule):
    """Replace a max pool with one along the width, and one of its results along the height.

    Why legal: the maximum of a window is that of the maxima of its rows, in any type; NaN, if there is one.
    Padding, strides and dilation along an axis are those of the pool along it.
    """

    data = wildcard()
    pattern = is_op("nn.max_pool2d")(data)

    def where(self, match: Match) -> bool:
        return is_worth_two_pools(match.root.attrs)

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return in_two_pools(relay.nn.max_pool2d, match.data, match.root.attrs)


class SeparateMaxPools(RulePass):
    """Compare fewer numbers for the maxima of large windows, such as those of spatial pyramid pooling.

    Of 13 by 13, each result takes 26 comparisons instead of 169.

    >>> x = relay.var("x", shape=(1, 20, 20, 64))
    >>> mod = tvm.IRModule.from_expr(relay.nn.max_pool2d(x, (5, 5), padding=(2, 2), layout="NHWC"))
    >>> print(tvm_passes.as_text(tvm_passes.SeparateMaxPools()(mod)))
    def @main(%x: Tensor[(1, 20, 20, 64), float32]) -> Tensor[(1, 20, 20, 64), float32] {
      %0 = nn.max_pool2d(%x, pool_size=[1, 5], padding=[0, 2, 0, 2], layout="NHWC");
      nn.max_pool2d(%0, pool_size=[5, 1], padding=[2, 0, 2, 0], layout="NHWC")
    }
    """

    rules = (MaximaOfMaxima,)
