"""Average a whole image in two steps, rows first, in float32."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import channel_axis
from ..analysis.half_precision import HALF
from ..engine.rule import LEGAL, Answer, Match, Refusal, Rule, RulePass


class GlobalPool(Rule):
    """Replace average pooling to one pixel with the mean of each row, and pooling of those.

    Why legal: all rows have the same length. TVM gives each channel's pooling to one thread block, and there
    are few channels; the means of rows run in parallel. TVM fuses a cast before with the mean, and one after
    with the pooling, but neither the other way round.
    """

    data = wildcard()
    pattern = is_op("nn.global_avg_pool2d")(data) | is_op("nn.adaptive_avg_pool2d")(data)

    def where(self, match: Match) -> bool:
        sizes = getattr(match.root.attrs, "output_size", [1])
        to_one_pixel = len(sizes) > 0 and all(int(size) == 1 for size in sizes)
        return to_one_pixel and not self.is_column(match)

    def is_column(self, match: Match) -> bool:
        shape, layout = match.data.checked_type.shape, str(match.root.attrs.layout)
        # As it is after this rule, whether or not the other dimensions are static.
        return channel_axis(layout) is not None and getattr(shape[layout.index("W")], "value", None) == 1

    def plan(self, match: Match) -> Answer | Refusal:
        attrs = match.root.attrs
        layout = str(attrs.layout)
        if channel_axis(layout) is None or str(attrs.out_layout) not in ("", layout):
            return Refusal("the layout splits or moves the channels")
        if not match.root.checked_type.dtype.startswith(("float", "bfloat")):
            return Refusal("a mean of integers is rounded, and rounding each row's mean would change it")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        layout, dtype = str(match.root.attrs.layout), match.root.checked_type.dtype
        data = relay.cast(match.data, "float32") if dtype in HALF else match.data
        rows = relay.mean(data, axis=layout.index("W"), keepdims=True)
        mean = relay.nn.global_avg_pool2d(rows, layout)
        return relay.cast(mean, dtype) if dtype in HALF else mean


class PoolByMeans(RulePass):
    """Average whole images, as channel attention does, by rows first.

    >>> x = relay.var("x", shape=(1, 64, 90, 160), dtype="float16")
    >>> mod = tvm.IRModule.from_expr(relay.nn.global_avg_pool2d(x))
    >>> print(tvm_passes.as_text(tvm_passes.PoolByMeans()(mod)))
    def @main(%x: Tensor[(1, 64, 90, 160), float16]) -> Tensor[(1, 64, 1, 1), float16] {
      %0 = cast(%x, dtype="float32");
      %1 = mean(%0, axis=[3], keepdims=True);
      %2 = nn.global_avg_pool2d(%1);
      cast(%2, dtype="float16")
    }
    """

    rules = (GlobalPool,)
