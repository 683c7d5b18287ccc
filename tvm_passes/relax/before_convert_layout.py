"""What TVM's ConvertLayout fails at, or leaves wrong, in words that it takes."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..engine.contract import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule
from .graph import axes_of, extents_of, op_name
from .rule_pass import rule_pass


class SplitInOne(Rule):
    """Drop a split into one part, which TVM's importer makes of one, and at which ConvertLayout fails.

    Why legal: the part, a tensor and no tuple, is the whole.
    """

    data = wildcard()
    pattern = is_op("relax.split")(data)

    def where(self, match: Match) -> bool:
        return not isinstance(match.root.ty, relax.TupleType)

    def rewrite(self, match: Match, plan: object) -> Expr:
        return match.data


class SqueezeOfOnes(Rule):
    """Name the axes that a squeeze drops, counted from the front.

    Why legal: they are the same axes, those of length 1. ConvertLayout drops all that are named, and takes
    their numbers for places in the layout.
    """

    data = wildcard()
    pattern = is_op("relax.squeeze")(data)

    def plan(self, match: Match) -> list[int] | Answer | Refusal:
        """The axes."""
        given, shape = match.root.attrs.axis, extents_of(match.data)
        if shape is None:
            return Refusal("the rank is not known")
        named = range(len(shape)) if given is None else [int(axis) % len(shape) for axis in given]
        axes = [axis for axis in named if shape[axis] == 1]
        return NO_MATCH if given is not None and axes == list(map(int, given)) else axes

    def rewrite(self, match: Match, plan: list[int]) -> Expr:
        return relax.op.squeeze(match.data, plan) if plan else match.data


class TransposeFromTheFront(Rule):
    """Count the axes of a transpose from the front.

    Why legal: they are the same axes. ConvertLayout takes their numbers for places in the layout.
    """

    data = wildcard()
    pattern = is_op("relax.permute_dims")(data)

    def where(self, match: Match) -> bool:
        return any(int(axis) < 0 for axis in match.root.attrs.axes or ())

    def rewrite(self, match: Match, plan: object) -> Expr:
        return relax.op.permute_dims(match.data, axes_of(match.root))


class StackAsConcatenate(Rule):
    """Replace a stack with a concatenation of tensors that have the new axis: ConvertLayout fails at stacks.

    Why legal: it is what a stack does.
    """

    pattern = is_op("relax.stack")(wildcard())

    def plan(self, match: Match) -> list[Expr] | Refusal:
        """The tensors."""
        tensors = match.graph.value(match.root.args[0])
        if not isinstance(tensors, relax.Tuple):
            return Refusal("it stacks a tuple that is not written out")
        return list(tensors.fields)

    def rewrite(self, match: Match, plan: list[Expr]) -> Expr:
        given = match.root.attrs.axis
        axis = (0 if given is None else int(given)) % int(match.root.ty.ndim)
        return relax.op.concat([relax.op.expand_dims(each, axis) for each in plan], axis)


class RepeatOfAll(Rule):
    """Flatten what is repeated along no axis, whose elements ConvertLayout would take in another order.

    Why legal: it is what such a repeat does.
    """

    data = wildcard()
    pattern = is_op("relax.repeat")(data)

    def where(self, match: Match) -> bool:
        return match.root.attrs.axis is None

    def rewrite(self, match: Match, plan: object) -> Expr:
        return relax.op.repeat(relax.op.reshape(match.data, (-1,)), int(match.root.attrs.repeats), 0)


class LayerNormOfSeveralAxes(Rule):
    """Reshape data to the shape that they have, before they are normalized along several axes.

    ConvertLayout would move these axes, but not those of gamma and beta. It leaves alone what reads the
    result of a reshape.
    """

    data = wildcard()
    pattern = is_op("relax.nn.layer_norm")(data, wildcard(), wildcard())

    def where(self, match: Match) -> bool:
        is_reshaped = op_name(match.graph.value(match.data)) == "relax.reshape"
        return len(match.root.attrs.axes) > 1 and not is_reshaped

    def plan(self, match: Match) -> Expr | Refusal:
        """The shape."""
        return match.data.ty.shape or Refusal("the shape of the data is not known")

    def rewrite(self, match: Match, plan: Expr) -> Expr:
        data = relax.op.reshape(match.data, plan)
        return relax.Call(match.root.op, [data, *match.root.args[1:]], match.root.attrs)


class PixelShuffle(Rule):
    """Replace nn.pixel_shuffle with a reshape, a transpose and a reshape, as TVM's importer writes most.

    Why legal: splitting the channels into (C, b, b) and moving the two b behind H and W is what it does.
    """

    data = wildcard()
    pattern = is_op("relax.nn.pixel_shuffle")(data)

    def where(self, match: Match) -> bool:
        return match.data.ty.ndim == 4

    def plan(self, match: Match) -> Answer | Refusal:
        shape = extents_of(match.data)
        is_known = shape is not None and shape[1] is not None
        return LEGAL if is_known else Refusal("the number of channels is dynamic")

    def rewrite(self, match: Match, plan: object) -> Expr:
        block = int(match.root.attrs.upscale_factor)
        batch, channels, height, width = match.data.ty.shape.values
        split = relax.op.reshape(match.data, (batch, int(channels) // block**2, block, block, height, width))
        return relax.op.reshape(relax.op.permute_dims(split, [0, 1, 4, 2, 5, 3]), match.root.ty.shape)


class SliceOfOpenAxes(Rule):
    """Reshape slices along axes of open sizes to the shape that they have.

    ConvertLayout infers their shapes anew, without knowing that no size is negative, and fails where an
    output gets another shape by that. It takes the shape of a reshape as it is.
    """

    pattern = is_op("relax.strided_slice")(*[wildcard()] * 5)

    def where(self, match: Match) -> bool:
        extents, users = extents_of(match.root), match.graph.users(match.root)
        return None in (extents or ()) and any(op_name(user) != "relax.reshape" for user in users)

    def rewrite(self, match: Match, plan: object) -> Expr:
        return relax.op.reshape(match.root, match.root.ty.shape)


def before_convert_layout() -> tvm.transform.Pass:
    return rule_pass(
        "BeforeConvertLayout",
        *(SplitInOne(), SqueezeOfOnes(), TransposeFromTheFront(), StackAsConcatenate()),
        *(RepeatOfAll(), LayerNormOfSeveralAxes(), PixelShuffle(), SliceOfOpenAxes()),
    )
