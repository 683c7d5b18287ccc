"""Let attention read queries, keys and values where a layer has written them."""

from __future__ import annotations

import math
from typing import NamedTuple

import topi_ext
from topi_ext.attention.op import MOST_ELEMENTS, NAME, parts_of
from topi_ext.attention.problem import BHND, Part, by_axis

from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..analysis.places import places
from ..engine.expressions import known_shape, static_shape
from ..engine.rule import NO_MATCH, Answer, Match, Rule, RulePass


class Given(NamedTuple):
    """An operand, and which part of it is read; None for all."""

    operand: relay.Expr
    part: Part | None


class PartsOfTensors(Rule):
    """Give the operator the tensor of which queries, keys or values are a part, and their strides in it.

    Why legal: it reads the same elements. They are vectors side by side, at places where kernels copy eight
    elements at once, so no kernel becomes slower.
    """

    pattern = is_op(NAME)(None)

    def plan(self, match: Match) -> list[Given] | Answer:
        """The operands and what is read of each."""
        call = match.root
        layouts, before = map(str, call.attrs["layouts"]), parts_of(call.attrs)
        given = [
            Given(operand, part) if part is not None else _part(operand, layout)
            for operand, layout, part in zip(call.args, layouts, before)
        ]
        return NO_MATCH if all(part is old for (_, part), old in zip(given, before)) else given

    def rewrite(self, match: Match, plan: list[Given]) -> relay.Expr:
        attrs = match.root.attrs
        layouts = [str(layout) if part is None else BHND for layout, (_, part) in zip(attrs["layouts"], plan)]
        query, key, value = (operand for operand, _ in plan)
        return topi_ext.attention(
            query,
            key,
            value,
            match.root.args[3] if attrs["has_mask"] else None,
            scale=float(attrs["scale"]),
            layouts=[*layouts, str(attrs["layouts"][3])],
            parts=[part for _, part in plan],
        )


def _part(operand: relay.Expr, layout: str) -> Given:
    """The tensor farthest back of which an operand is a part that kernels can read, or the operand."""
    given = Given(operand, None)
    shape = static_shape(operand)
    if shape is None:
        return given
    for source, first, strides in places(operand):
        part = Part(by_axis(shape, layout), by_axis(strides, layout), first)
        is_readable = part.strides[3] == 1 and part.is_aligned and min(strides) >= 0
        is_readable = is_readable and math.prod(known_shape(source)) < MOST_ELEMENTS
        if is_readable and not _is_whole(source, shape, strides):
            given = Given(source, part)
    return given


def _is_whole(source: relay.Expr, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor has all elements of another one, in the same order."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return step == math.prod(known_shape(source))


class AttendInPlace(RulePass):
    """Let `topi_ext.attention` read the parts of a tensor, instead of copies of them.

    Transformers often compute queries, keys and values by one layer. TVM would copy each to a tensor of its
    own, by kernels between the layer and the attention.

    >>> packed = relay.var("packed", shape=(2, 10, 3, 4, 8))
    >>> parts = relay.split(relay.transpose(packed, [2, 0, 3, 1, 4]), 3)
    >>> query, key, value = (relay.squeeze(part, [0]) for part in parts)
    >>> mod = tvm.IRModule.from_expr(topi_ext.attention(query, key, value, scale=0.25))
    >>> print(tvm_passes.as_text(tvm_passes.AttendInPlace()(mod)))
    def @main(%packed: Tensor[(2, 10, 3, 4, 8), float32]) -> Tensor[(2, 4, 10, 8), float32] {
      topi_ext.attention(%packed, %packed, %packed, 0f, has_mask=0,
          layouts=["BHND", "BHND", "BHND", "BHND"], parts=[[[2, 4, 10, 8], [960, 8, 96, 1], [0]],
          [[2, 4, 10, 8], [960, 8, 96, 1], [32]], [[2, 4, 10, 8], [960, 8, 96, 1], [64]]],
          scale=0.25f)
    }
    """

    rules = (PartsOfTensors,)
