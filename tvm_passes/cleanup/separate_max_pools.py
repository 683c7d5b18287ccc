"""Take the maximum of each window along its rows first."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.rule import Match, Rule, RulePass

WORTH = 0.7  # of the comparisons of one pool, which two may have: they write results and read them, too


class MaximaOfMaxima(Rule):
    """Replace a max pool with one along the width, and one of its results along the height.

    Why legal: the maximum of a window is that of the maxima of its rows, in any type; NaN, if there is one.
    Padding, strides and dilation along an axis are those of the pool along it.
    """

    data = wildcard()
    pattern = is_op("nn.max_pool2d")(data)

    def where(self, match: Match) -> bool:
        attrs = match.root.attrs
        (height, width), (step, _) = map(int, attrs.pool_size), map(int, attrs.strides)
        is_height_first = str(attrs.layout).index("H") < str(attrs.layout).index("W")
        return is_height_first and width * step + height <= WORTH * width * height

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        rows = _pooled(match.data, match.root.attrs, is_along=(False, True))
        return _pooled(rows, match.root.attrs, is_along=(True, False))


def _pooled(data: relay.Expr, attrs: Any, is_along: tuple[bool, bool]) -> relay.Expr:
    """The pool along the height or the width alone."""

    def along(values: Any, otherwise: int) -> list[int]:
        given = list(map(int, values))
        given = given * 2 if len(given) == 1 else given
        return [value if is_along[at % 2] else otherwise for at, value in enumerate(given)]

    return relay.nn.max_pool2d(
        data,
        pool_size=along(attrs.pool_size, 1),
        strides=along(attrs.strides, 1),
        dilation=along(attrs.dilation, 1),
        padding=along(attrs.padding, 0),
        layout=str(attrs.layout),
        out_layout=str(attrs.out_layout),
        ceil_mode=bool(attrs.ceil_mode),
    )


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
