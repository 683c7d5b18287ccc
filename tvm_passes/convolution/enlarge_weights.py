"""A rule for weights that are too small for float16, such as those with the scale of a layer folded in."""

from __future__ import annotations

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.convolution import weights_of, why_not_plain, with_weights
from ..analysis.half_precision import RANGES
from ..engine.rule import NO_MATCH, Answer, Match, Rule

LARGEST = -2  # the exponent of the largest weight at most: as that of weights that no factor is part of


class EnlargedForFloat16(Rule):
    """Replace a convolution by one of larger weights, and a factor behind it.

    A network that is not trained yet has scales near zero; its convolutions would stay in float32, which
    tensor cores do not multiply.

    Why legal: a convolution is linear, and the factor is a power of two, by which nothing is rounded. The
    larger weights of a filter add up to at most 1, so that no result exceeds the largest of the data.
    """

    pattern = is_op("nn.conv2d")(wildcard(), wildcard())

    def plan(self, match: Match) -> int | Answer:
        """The exponent of the power of two."""
        conv = match.root
        types = {expr.checked_type.dtype for expr in (*conv.args, conv)}
        if types != {"float32"} or str(conv.attrs.data_layout) != "NHWC" or why_not_plain(conv):
            return NO_MATCH
        weights = np.abs(weights_of(conv))
        if not 0 < weights.max(initial=0) < RANGES["float16"][0]:  # which NaN is not, either
            return NO_MATCH
        of_filters = weights.astype("float64").sum(axis=(1, 2, 3))
        exponent = min(LARGEST - _exponent(weights.max()), -_exponent(of_filters.max()))
        if np.ldexp(weights.max(), exponent) < RANGES["float16"][0]:
            return NO_MATCH
        # A factor is a normal number, so that no target takes it, or a weight, for 0.
        return exponent if exponent < -np.finfo("float32").minexp else NO_MATCH

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        enlarged = np.ldexp(weights_of(match.root), plan)
        conv = with_weights(match.root, match.root.args[0], enlarged)
        return relay.multiply(conv, relay.const(np.ldexp(np.float32(1), -plan)))


def _exponent(number: np.floating) -> int:
    """Of the least power of two that is larger."""
    return int(np.frexp(number)[1])
