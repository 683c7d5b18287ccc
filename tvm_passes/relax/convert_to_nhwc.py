"""Convert a network to the layout NHWC, from its first convolution to its last."""

from __future__ import annotations

import numpy as np

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..engine.contract import Match, Refusal, Rule
from .graph import ELEMENTWISE, Graph, axes_of, dtype_of, op_name, tensors_of
from .rule_pass import rule_pass

LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],  # in others TVM cannot compile it
}
# TVM's ConvertLayout stops at some of them, and where shapes are broadcast.
SINGLE = {*ELEMENTWISE, *(f"relax.nn.{name}" for name in ("leakyrelu", "silu", "gelu", "gelu_tanh"))}


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


class TransposeBeforeElementwise(Rule):
    """Move the transposes before an elementwise operator behind it, where they meet the next ones.

    Why legal: the operator does the same to each element, wherever it is. All its arguments have the same
    rank, so that they are broadcast alike, and move alike; a scalar is the same everywhere, and constants are
    transposed the other way here. Nothing else reads the transposed tensors, so there are no more of them.
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
        if any(match.graph.users(each) != [match.root] for each in transposes):
            return Refusal("a transposed tensor has other users")
        others = [each for each in tensors_of(match.root) if match.graph.value(each) not in transposes]
        if any(_moved_back(match.graph, each, axes) is None for each in others):
            return Refusal("an argument is neither transposed nor a constant")
        return axes

    def rewrite(self, match: Match, plan: tuple[int, ...]) -> Expr:
        tensors = tensors_of(match.root)
        arguments = [_moved_back(match.graph, a, plan) if a in tensors else a for a in match.root.args]
        return relax.op.permute_dims(relax.Call(match.root.op, arguments, match.root.attrs), plan)


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
            rule_pass("BeforeConvertLayout", SplitInOne(), LayerNormOfSeveralAxes()),
            relax.transform.ConvertLayout(LAYOUTS),
            relax.transform.EliminateCommonSubexpr(),  # what it reads twice has one user more
            rule_pass(
                "ConvertToNHWC", TransposeToItself(), TransposeOfTranspose(), TransposeBeforeElementwise()
            ),
        ],
        name="ConvertToNHWC",
    )
