"""Convert a network to the layout NHWC, from its first convolution to its last."""

from __future__ import annotations

import numpy as np

from topi_ext.roi_align.op import NAME as MULTISCALE_ROI_ALIGN

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.shuffles import Shuffle, read_shuffle
from ..engine.contract import NO_MATCH, Answer, Match, Refusal, Rule
from .before_convert_layout import before_convert_layout
from .graph import ELEMENTWISE, Graph, axes_of, dtype_of, lengths_of, op_name, tensors_of
from .rule_pass import rule_pass
from .shuffles import SpelledShuffle, are_known, spelled

LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],  # in others TVM cannot compile it
}
TO_NCHW = (0, 3, 1, 2)  # from NHWC
# TVM's ConvertLayout stops at some of them, and where shapes are broadcast.
OTHERS = "greater", "where", "nn.leakyrelu", "nn.silu", "nn.gelu", "nn.gelu_tanh"
SINGLE = {*ELEMENTWISE, *(f"relax.{name}" for name in OTHERS)}


class TransposeBeforeElementwise(Rule):
    """Move the transposes before an elementwise operator behind it, where they meet the next ones.

    Why legal: the operator does the same to each element, wherever it is. All its arguments have the same
    rank, so that they are broadcast alike, and move alike; a scalar is the same everywhere, and constants are
    transposed the other way here. What else reads the transposed tensors is elementwise too, or transposes
    them, so that there are no more of them in the end.
    """

    pattern = wildcard()

    def where(self, match: Match) -> bool:
        return op_name(match.root) in SINGLE and _transposes(match) != []

    def plan(self, match: Match) -> tuple[int, ...] | Refusal:
        """The axes of the transposes, which are all alike."""
        transposes = _transposes(match)
        axes = axes_of(transposes[0])
        if any(axes_of(each) != axes for each in transposes):
            return Refusal("the transposes before the operator differ")
        if not all(_is_movable(user) for each in transposes for user in match.graph.users(each)):
            return Refusal("a transposed tensor has other users")
        others = [each for each in tensors_of(match.root) if match.graph.value(each) not in transposes]
        if any(_moved_back(match.graph, each, axes) is None for each in others):
            return Refusal("an argument is neither transposed nor a constant")
        return axes

    def rewrite(self, match: Match, plan: tuple[int, ...]) -> Expr:
        tensors = tensors_of(match.root)
        arguments = [_moved_back(match.graph, a, plan) if a in tensors else a for a in match.root.args]
        return relax.op.permute_dims(relax.Call(match.root.op, arguments, match.root.attrs), plan)


class TransposeBeforeShuffle(SpelledShuffle):
    """Move the transpose from NHWC to NCHW behind a depth-to-space, which is in NHWC then.

    Why legal: a shuffle takes each pixel's channels to the pixels of its block, in whatever order the axes
    are stored. Nothing else reads what is in between, so it is not computed twice.
    """

    def where(self, match: Match) -> bool:
        before = match.graph.value(match.data)
        return super().where(match) and op_name(before) == "relax.permute_dims" and axes_of(before) == TO_NCHW

    def plan(self, match: Match) -> Shuffle | Answer | Refusal:
        data, split, result = map(lengths_of, (match.data, match.split, match.root))
        if data is None or split is None or result is None:
            return NO_MATCH
        is_of_channels = (data[0], data[2:]) == (split[0], split[4:])
        if not is_of_channels or not are_known(data[1], *split[1:4], result[1]):
            return NO_MATCH
        shuffle = read_shuffle(data, split, result, axes=axes_of(match.moved))
        if isinstance(shuffle, Refusal):
            return shuffle
        if match.used_elsewhere(match.data, match.split, match.moved):
            return Refusal("the transposed, split or moved tensor has other users")
        return shuffle

    def rewrite(self, match: Match, plan: Shuffle) -> Expr:
        (pixels,) = match.graph.value(match.data).args
        return relax.op.permute_dims(spelled(pixels, plan), TO_NCHW)


class TransposeBeforeRoIAlign(Rule):
    """Move the transposes of feature maps from NHWC to NCHW behind the pooling of regions, which takes NHWC.

    Why legal: each channel is pooled by itself, in whatever order the axes are stored.
    """

    features = wildcard()
    pattern = is_op(MULTISCALE_ROI_ALIGN)(features)

    def where(self, match: Match) -> bool:
        attrs, (*maps, _) = match.root.attrs, _fields(match.graph, match.features)
        return (
            str(attrs["layout"]) == "NCHW" and not int(attrs["by_position"]) and all(map(_is_to_nchw, maps))
        )

    def rewrite(self, match: Match, plan: object) -> Expr:
        *maps, rois = _fields(match.graph, match.features)
        attrs = tvm.ir.make_node("ir.DictAttrs", **{**match.root.attrs, "layout": "NHWC"})
        pixels = relax.Tuple([*(map_.args[0] for map_ in maps), rois])
        return relax.op.permute_dims(relax.Call(match.root.op, [pixels], attrs), TO_NCHW)


def _is_to_nchw(value: Expr) -> bool:
    return op_name(value) == "relax.permute_dims" and axes_of(value) == TO_NCHW


def _fields(graph: Graph, expr: Expr) -> list[Expr]:
    """The values of feature maps, and the regions as they are written."""
    *maps, rois = graph.value(expr).fields
    return [*map(graph.value, maps), rois]


class TransposeToItself(Rule):
    """Drop a transpose that leaves all axes where they are, which ConvertLayout makes of some."""

    data = wildcard()
    pattern = is_op("relax.permute_dims")(data)

    def where(self, match: Match) -> bool:
        return list(axes_of(match.root)) == sorted(axes_of(match.root))

    def rewrite(self, match: Match, plan: object) -> Expr:
        return match.data


class TransposeOfTranspose(Rule):
    """Replace two transposes in a row with one.

    Why legal: two permutations of the axes, one after the other, are a permutation.
    """

    data = wildcard()
    inner = is_op("relax.permute_dims")(data)
    pattern = is_op("relax.permute_dims")(inner)

    def rewrite(self, match: Match, plan: object) -> Expr:
        inner = axes_of(match.inner)
        return relax.op.permute_dims(match.data, [inner[axis] for axis in axes_of(match.root)])


def _transposes(match: Match) -> list[Expr]:
    """The arguments of the root that are transposed tensors, of its rank."""
    values = [match.graph.value(argument) for argument in tensors_of(match.root)]
    moved = [v for v in values if op_name(v) == "relax.permute_dims" and v.ty.ndim == match.root.ty.ndim]
    return [value for value in moved if match.graph.constant(value) is None]


def _is_movable(user: Expr) -> bool:
    return op_name(user) in (*SINGLE, "relax.permute_dims")


def _moved_back(graph: Graph, argument: Expr, axes: tuple[int, ...]) -> Expr | None:
    """An argument as it is before the transposes; None where it is neither transposed nor a constant."""
    array = graph.constant(argument)
    if array is not None:
        if array.ndim == 0:
            return argument
        array = array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
        return relax.const(np.ascontiguousarray(array.transpose(np.argsort(axes))), dtype_of(argument))
    value = graph.value(argument)
    return value.args[0] if op_name(value) == "relax.permute_dims" and axes_of(value) == axes else None


def ConvertToNHWC() -> tvm.transform.Pass:
    """TVM's ConvertLayout, with what it needs before and after.

    Why legal: ConvertLayout moves axes and nothing else, and moves them back wherever an operator, or the
    function's caller, needs them as they were.
    """
    return tvm.transform.Sequential(
        [
            before_convert_layout(),
            relax.transform.ConvertLayout(LAYOUTS),
            relax.transform.EliminateCommonSubexpr(),  # what it reads twice has one user more
            rule_pass(
                "ConvertToNHWC",
                *(TransposeToItself(), TransposeOfTranspose()),
                *(TransposeBeforeElementwise(), TransposeBeforeShuffle(), TransposeBeforeRoIAlign()),
            ),
        ],
        name="ConvertToNHWC",
    )
