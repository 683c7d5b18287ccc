"""Write channels that are assigned in place, as in `x[:, :16] = y`, as a concatenation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tvm import relay
from tvm.relay.dataflow_pattern import is_op, wildcard

from ...engine.expressions import constant, static_shape
from ...engine.rule import NO_MATCH, Answer, Match, Rule

CHANNELS = 1  # the axis, of images in NCHW


class _Run(NamedTuple):
    begin: int
    end: int


class ConcatenateForWhere(Rule):
    """Replace channels that `where` takes from another tensor with a concatenation of that and the others.

    PyTorch's importer writes an assignment to some places of an axis so. Layouts pass a concatenation, but
    no `where` of channels; and convolutions read and write the parts in place.

    Why legal: the places are constant and in a row, and the part has just as many, in the same order.
    """

    mask, part, places, base = wildcard(), wildcard(), wildcard(), wildcard()
    pattern = is_op("where")(mask, is_op("take")(part, places), base)

    def plan(self, match: Match) -> _Run | Answer:
        mask, places, shape = constant(match.mask), constant(match.places), static_shape(match.root)
        if mask is None or places is None or shape is None or len(shape) != 4 or 0 in shape:
            return NO_MATCH
        take, chosen = match.root.args[1], np.flatnonzero(mask)
        axis = take.attrs.axis
        if mask.shape != (1, shape[CHANNELS], 1, 1) or places.shape != (shape[CHANNELS],) or not chosen.size:
            return NO_MATCH
        if any(each.checked_type != match.root.checked_type for each in (take, match.base)):
            return NO_MATCH
        if axis is None or int(axis) % 4 != CHANNELS:
            return NO_MATCH
        run = _Run(int(chosen[0]), int(chosen[-1]) + 1)
        count = run.end - run.begin
        is_in_order = np.array_equal(places[mask.reshape(-1).astype(bool)], np.arange(count))
        part = (*shape[:CHANNELS], count, *shape[CHANNELS + 1 :])
        if chosen.size < count or not is_in_order or static_shape(match.part) != part:
            return NO_MATCH
        return run

    def rewrite(self, match: Match, plan: _Run) -> relay.Expr:
        channels = int(match.root.checked_type.shape[CHANNELS])
        parts = [match.part]
        if plan.begin:
            parts.insert(0, relay.strided_slice(match.base, [0], [plan.begin], [1], axes=[CHANNELS]))
        if plan.end < channels:
            parts.append(relay.strided_slice(match.base, [plan.end], [channels], [1], axes=[CHANNELS]))
        return relay.concatenate(parts, CHANNELS) if len(parts) > 1 else match.part
