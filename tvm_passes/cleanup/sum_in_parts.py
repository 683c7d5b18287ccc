"""Compute products of matrices with few results, each the sum of many products, in parts."""

from __future__ import annotations

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..engine.expressions import known_shape, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass

FLOATS = "float32", "float16", "bfloat16"
TILE = 64  # rows and columns of the results that a block computes
BLOCKS = 256  # that keep a large GPU busy
SHORTEST = 512  # terms of a part
MULTIPLE = 16  # of terms, that tensor cores multiply at once


class SumsOfParts(Rule):
    """Replace a product of matrices with the sum of products of their parts, which are more of a batch.

    Why legal: it is the same sum, in another order. That of a part, and that of all parts, is float32.
    """

    left, right = wildcard(), wildcard()
    pattern = is_op("nn.batch_matmul")(left, right)

    def plan(self, match: Match) -> int | Answer:
        """The number of parts."""
        tensors = match.left, match.right, match.root
        types = {each.checked_type.dtype for each in tensors}
        if any(static_shape(each) is None for each in tensors) or types - set(FLOATS):
            return NO_MATCH
        (batch, *of_left), (of_right, *_), (_, rows, columns) = map(known_shape, tensors)
        depth = of_left[0 if match.root.attrs.transpose_a else 1]
        tiles = batch * -(-rows // TILE) * -(-columns // TILE)
        if batch != of_right or not tiles or 2 * tiles > BLOCKS:
            return NO_MATCH
        most = min(BLOCKS // tiles, depth // SHORTEST)
        return next((n for n in range(most, 1, -1) if depth % (n * MULTIPLE) == 0), NO_MATCH)

    def rewrite(self, match: Match, plan: int) -> relay.Expr:
        attrs, (batch, *of_one) = match.root.attrs, known_shape(match.root)
        options = {"transpose_a": bool(attrs.transpose_a), "transpose_b": bool(attrs.transpose_b)}
        left = _in_parts(match.left, plan, axis=1 if options["transpose_a"] else 2)
        right = _in_parts(match.right, plan, axis=2 if options["transpose_b"] else 1)
        products = relay.nn.batch_matmul(left, right, out_dtype="float32", **options)
        total = relay.sum(relay.reshape(products, (batch, plan, *of_one)), axis=1)
        dtype = match.root.checked_type.dtype
        return total if dtype == "float32" else relay.cast(total, dtype)


def _in_parts(matrices: relay.Expr, parts: int, axis: int) -> relay.Expr:
    """Matrices whose rows, or columns, are cut into parts, all of them as one batch."""
    batch, rows, columns = known_shape(matrices)
    if axis == 1:
        return relay.reshape(matrices, (batch * parts, rows // parts, columns))
    cut = relay.reshape(matrices, (batch, rows, parts, columns // parts))
    return relay.reshape(relay.transpose(cut, (0, 2, 1, 3)), (batch * parts, rows, columns // parts))


class SumInParts(RulePass):
    """Let a whole GPU compute few results that are sums of many products.

    Where channels attend to each other, each result is a sum over all pixels, and there are as many results
    as pairs of channels: a kernel that gives each to a block leaves most of the GPU without work. The parts
    are moved by what computes the operands, where TVM fuses that.

    >>> q, k = (relay.var(name, shape=(2, 32, 4096), dtype="float16") for name in "qk")
    >>> mod = tvm.IRModule.from_expr(relay.nn.batch_matmul(q, k, out_dtype="float32"))
    >>> print(tvm_passes.as_text(tvm_passes.SumInParts()(mod)))
    def @main(%q: Tensor[(2, 32, 4096), float16], %k: Tensor[(2, 32, 4096), float16])
        -> Tensor[(2, 32, 32), float32] {
      %0 = reshape(%q, newshape=[2, 32, 8, 512]);
      %1 = transpose(%0, axes=[0, 2, 1, 3]);
      %2 = reshape(%k, newshape=[2, 32, 8, 512]);
      %3 = transpose(%2, axes=[0, 2, 1, 3]);
      %4 = reshape(%1, newshape=[16, 32, 512]);
      %5 = reshape(%3, newshape=[16, 32, 512]);
      %6 = nn.batch_matmul(%4, %5, out_dtype="float32", transpose_b=True);
      %7 = reshape(%6, newshape=[2, 8, 32, 32]);
      sum(%7, axis=[1])
    }
    """

    rules = (SumsOfParts,)
