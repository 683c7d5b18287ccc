"""Slices whose bounds follow from lengths, as operators that are computed with what reads them."""

from __future__ import annotations

from typing import NamedTuple

from topi_ext import slice_by_lengths
from topi_ext.slice_by_lengths.bounds import LENGTH

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ..analysis.length_terms import NO_TERM, Term, term_of
from ..analysis.lengths import Origins
from ..analysis.shape_values import TO_THE_END, Dim
from ..engine.expressions import constant, known_extent, op_name, type_of
from ..engine.rule import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule, RulePass

NAME = "topi_ext.slice_by_lengths"


class _Slice(NamedTuple):
    others: list[relay.Expr]
    bounds: dict[int, tuple]  # (start, stop, step), by axis


class OfDynamicSlice(Rule):
    """Replace dyn.strided_slice with slice_by_lengths where bounds are computed from lengths alone.

    Why legal: both count bounds below 0 from the end, and take nothing past the end. The numbers are computed
    as the operators of the graph do, in int64.
    """

    data, begin, end, strides = wildcard(), wildcard(), wildcard(), wildcard()
    pattern = is_op("dyn.strided_slice")(data, begin, end, strides)

    def where(self, match: Match) -> bool:
        return str(match.root.attrs.slice_mode) == "end"

    def plan(self, match: Match) -> _Slice | Refusal | Answer:
        shape, strides = type_of(match.data).shape, constant(match.strides)
        if strides is None or min(strides.ravel(), default=1) < 1:
            return Refusal("a step is below 1, or known only at run time")
        if any(type_of(each).dtype not in ("int32", "int64") for each in (match.begin, match.end)):
            return Refusal("bounds are neither int32 nor int64")
        origins: Origins = match.graph.notes.setdefault(OfDynamicSlice, Origins())
        unknown = [axis for axis, extent in enumerate(shape) if known_extent(extent) is None]
        own = {origins.of(Dim(match.data, axis)): axis for axis in reversed(unknown)}
        places: dict[relay.Expr, int] = {match.data: 0}
        bounds = {}

        def written(term: Term) -> Term:
            """The term, with each length as that of a tensor that the operator reads."""
            if isinstance(term, Dim):
                origin = origins.of(term)
                if origin in own:
                    return LENGTH, 0, own[origin]
                return LENGTH, places.setdefault(origin.tensor, len(places)), origin.axis
            return (term[0], *map(written, term[1:])) if isinstance(term, tuple) else term

        for axis in range(len(strides)):
            start, stop = term_of(match.begin, axis), term_of(match.end, axis)
            if start is NO_TERM or stop is NO_TERM:
                return NO_MATCH  # as the number of detections, it is computed from data
            length = (LENGTH, 0, axis) if known_extent(shape[axis]) is None else known_extent(shape[axis])
            start, stop = (_without_limit(written(each), length) for each in (start, stop))
            if isinstance(stop, int) and stop >= TO_THE_END:
                stop = length
            if (start, stop, int(strides[axis])) != (0, length, 1):
                bounds[axis] = start, stop, int(strides[axis])
        return _Slice(list(places)[1:], bounds)

    def rewrite(self, match: Match, plan: _Slice) -> relay.Expr:
        return slice_by_lengths(match.data, *plan) if plan.bounds else match.data


def _without_limit(term: Term, length: Term) -> Term:
    """A bound that is no more than the length means the same without this limit, as every slice has it."""
    while isinstance(term, tuple) and term[0] == "minimum" and length in term[1:]:
        term = term[2] if term[1] == length else term[1]
    return term


class KnownAlready(Rule):
    """Drop a reshape of a slice that only tells the compiler lengths that the slice's type tells, too.

    Why legal: a shape of zeros, and of numbers where the data has the same, is that of the data.
    """

    data = wildcard()
    pattern = is_op("reshape")(data)

    def where(self, match: Match) -> bool:
        return op_name(match.data) == NAME

    def plan(self, match: Match) -> Answer:
        codes, shape = list(map(int, match.root.attrs.newshape)), type_of(match.data).shape
        if bool(match.root.attrs.allowzero) or len(codes) != len(shape):
            return NO_MATCH
        same = (code in (0, known_extent(extent)) for code, extent in zip(codes, shape))
        return LEGAL if all(same) else NO_MATCH

    def rewrite(self, match: Match, plan: Answer) -> relay.Expr:
        return match.data


class SliceByLengths(RulePass):
    """Compute slices whose bounds follow from lengths of tensors with the operators that read them.

    Networks of unknown sizes crop what they padded, and compare an image with parts of another one that are
    as large. TVM computes the bounds of each slice in a tensor, by half a dozen kernels, and the slice apart
    from what reads it, since its lengths are data; it stays in NCHW, between convolutions in NHWC.

    >>> from tvm.relay.op.dyn import _make as dynamic
    >>> x = relay.var("x", shape=(1, 8, relay.Any(), relay.Any()))
    >>> padded = relay.nn.pad(x, [[0, 0], [0, 0], [1, 1], [1, 1]])
    >>> zero, one = (relay.const(np.full(4, value), "int64") for value in (0, 1))
    >>> cropped = dynamic.strided_slice(padded, zero, relay.shape_of(x, "int64"), one, "end")
    >>> mod = tvm.IRModule.from_expr(relay.multiply(x, cropped))
    >>> print(tvm_passes.as_text(tvm_passes.SliceByLengths()(mod)))
    def @main(%x: Tensor[(1, 8, ?, ?), float32]) -> Tensor[(1, 8, ?, ?), float32] {
      %0 = nn.pad(%x, 0, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]);
      %1 = topi_ext.slice_by_lengths(%0, %x, bounds="{2: (0, ('length', 1, 2), 1), 3: (0, ('length',
          1, 3), 1)}");
      multiply(%x, %1)
    }
    """

    rules = (OfDynamicSlice, KnownAlready)
