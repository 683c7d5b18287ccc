"""Read tensors where they are, rather than from kernels that only copy them."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from tvm import relay
from tvm.ir import structural_equal
from tvm.relay.dataflow_pattern import is_constant, is_op, is_tuple_get_item, wildcard

from ...analysis.convolution import as_constant
from ...analysis.limits import limits
from ...analysis.operators import as_first_shaped, keeps_order
from ...engine.expressions import known_shape, op_name, scalar, static_shape
from ...engine.rule import NO_MATCH, Answer, Match, Refusal, Rule, RulePass
from .parts_of_split import SliceForPart, WholeForParts


class SplitOfReshapedConcatenate(Rule):
    """Replace a part of `split(reshape(concatenate(x, y, ...)))` that is one of these with that tensor.

    `Canonicalize` does so where there is no reshape in between.

    Why legal: both cut memory from its beginning to its end, and at the same places. Each level of a
    detector can go on as soon as it is done, without waiting for the others.
    """

    data = wildcard()
    split = is_op("split")(data)
    pattern = is_tuple_get_item(split)

    def where(self, match: Match) -> bool:
        return op_name(as_first_shaped(match.data)) == "concatenate"

    def plan(self, match: Match) -> relay.Expr | Answer | Refusal:
        """The tensor that is this part."""
        concatenate = as_first_shaped(match.data)
        parts = getattr(concatenate.args[0], "fields", None)
        if parts is None or static_shape(concatenate) is None:
            return NO_MATCH
        put = _places_in_memory([part.checked_type for part in parts], int(concatenate.attrs.axis))
        cut = _places_in_memory(list(match.split.checked_type.fields), int(match.split.attrs.axis))
        if put is None or cut is None:
            return Refusal("the parts are not one behind the other in memory")
        place = cut[match.root.index]
        if place not in put:
            return Refusal("it is cut at other places than those where it was put together")
        return parts[put.index(place)]

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return relay.reshape(plan, known_shape(match.root))


class TakeOfNotNegative(Rule):
    """Replace `take(x, maximum(index, 0))` with `take(x, index)`.

    Why legal: in the mode "clip", `take` replaces negative indices with 0, too.
    """

    data, index, bound = wildcard(), wildcard(), is_constant()
    pattern = is_op("take")(data, is_op("maximum")(index, bound))

    def where(self, match: Match) -> bool:
        same_type = structural_equal(match.root.args[1].checked_type, match.index.checked_type)
        is_clipped = str(match.root.attrs.mode) == "clip" and limits(match.graph, match.bound).greatest <= 0
        return same_type and is_clipped

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        return relay.Call(match.root.op, [match.data, match.index], match.root.attrs)


class ReshapeUndone(Rule):
    """Drop operators that change a shape, and change it back."""

    pattern = is_op("reshape")(None) | is_op("squeeze")(None) | is_op("expand_dims")(None)

    def where(self, match: Match) -> bool:
        return static_shape(match.root) is not None

    def plan(self, match: Match) -> relay.Expr | Answer:
        """The tensor before."""
        node = match.root
        while keeps_order(node):
            node = node.args[0]
            if structural_equal(node.checked_type, match.root.checked_type):
                return node
        return NO_MATCH

    def rewrite(self, match: Match, plan: relay.Expr) -> relay.Expr:
        return plan


class ConstantPlusZeros(Rule):
    """Replace the sum of constant integers and of zeros with a constant, whatever the zeros are like.

    Why legal: the zeros have a shape that is known, and nothing else. PyTorch's `expand_as` is spelled so.
    """

    number, zeros = is_constant(), wildcard()
    pattern = is_op("add")(number, zeros)

    def where(self, match: Match) -> bool:
        zeros = match.zeros
        while op_name(zeros) == "cast":
            zeros = zeros.args[0]
        shape, dtype = static_shape(match.root), match.root.checked_type.dtype
        return shape is not None and "int" in dtype and op_name(zeros) in ("zeros", "zeros_like")

    def rewrite(self, match: Match, plan: object) -> relay.Expr:
        number = match.number.data
        return as_constant(np.broadcast_to(number.numpy(), known_shape(match.root)), number.dtype)


class RegionsOfTheFirstImage(Rule):
    """Replace regions that are concatenated to a column of zeros, the index of their image, with the regions.

    Why legal: `multiscale_roi_align` takes regions without an index for those of the first image.
    """

    pattern = is_op("topi_ext.multiscale_roi_align")(wildcard())

    def plan(self, match: Match) -> list[relay.Expr] | Answer:
        """The features, and the regions without index."""
        *features, regions = getattr(match.root.args[0], "fields", [None])
        if op_name(regions) != "concatenate" or int(regions.attrs.axis) not in (1, -1):
            return NO_MATCH
        parts = getattr(regions.args[0], "fields", [])
        if len(parts) != 2 or not _is_zero(parts[0]):
            return NO_MATCH
        columns = [part.checked_type.shape[1] for part in parts]
        return [*features, parts[1]] if columns == [1, 4] else NO_MATCH

    def rewrite(self, match: Match, plan: list[relay.Expr]) -> relay.Expr:
        return relay.Call(match.root.op, [relay.Tuple(plan)], match.root.attrs)


class SpareKernels(RulePass):
    """Drop operators of which TVM makes kernels that only copy, since other operators read their results too.

    On a GPU, a kernel takes as long to start as to copy a few thousand numbers, and those behind it wait.

    >>> scores = [relay.var(name, shape=(1, count)) for name, count in (("fine", 400), ("coarse", 100))]
    >>> levels = relay.split(relay.concatenate(scores, 1), [400], axis=1)
    >>> best = [relay.topk(level, k=50, ret_type="values") for level in levels]
    >>> mod = tvm.IRModule.from_expr(relay.Function(scores, relay.Tuple(best)))
    >>> print(tvm_passes.as_text(tvm_passes.SpareKernels()(mod)))
    def @main(%fine: Tensor[(1, 400), float32], %coarse: Tensor[(1, 100), float32])
        -> (Tensor[(1, 50), float32], Tensor[(1, 50), float32]) {
      %0 = topk(%fine, k=50, ret_type="values", dtype="int32");
      %1 = topk(%coarse, k=50, ret_type="values", dtype="int32");
      (%0, %1)
    }
    """

    rules = (
        SplitOfReshapedConcatenate,
        WholeForParts,
        SliceForPart,
        TakeOfNotNegative,
        ReshapeUndone,
        ConstantPlusZeros,
        RegionsOfTheFirstImage,
    )


def _is_zero(expr: relay.Expr) -> bool:
    """Whether all elements are 0, whatever the shape."""
    name = op_name(expr)
    if name in ("full", "full_like"):
        return scalar(expr.args[0 if name == "full" else 1]) == 0
    return name in ("zeros", "zeros_like") or (
        isinstance(expr, relay.Constant) and not expr.data.numpy().any()
    )


def _places_in_memory(types: list[relay.TensorType], axis: int) -> list[tuple[int, int]] | None:
    """Where each part begins and ends in the whole; None if the parts are not one behind the other."""
    shapes = [[int(extent) for extent in type_.shape] for type_ in types]
    axis %= len(shapes[0])
    if math.prod(shapes[0][:axis]) != 1:
        return None
    ends = list(accumulate(map(math.prod, shapes)))
    return list(zip([0, *ends], ends))
