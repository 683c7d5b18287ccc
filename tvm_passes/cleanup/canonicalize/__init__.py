"""Bring what PyTorch's and ONNX's importers spell in many ways to one spelling.

A pass then needs one pattern for an idiom instead of one for each frontend and version, and more types are
static than the importers find. Results stay the same.
"""

from __future__ import annotations

from tvm.ir.transform import Sequential

from ...engine.rule import RulePass
from .by_zero import KeepZeroInMemory
from .concatenate_for_where import ConcatenateForWhere
from .drop_identities import IDENTITIES
from .fold_shape_arithmetic import FoldShapeArithmetic
from .like_known import LikeKnownShape
from .of_equals import SeparateDifferenceOfEquals, TwiceForSumOfEquals
from .of_nothing import MeanOfNothing, NothingIsMade
from .pad_with_filled import PadWithFilled
from .prune_branches import PruneBranch
from .square import SquareForPower
from .static_forms import STATIC_FORMS
from .whole_of_parts import WholeOfMovedParts


class Canonicalize(RulePass):
    """Fold shape arithmetic, make dynamic operators static, and drop no-ops and dead branches.

    Why legal: an operator is dropped, or made static, only where its attributes and the types around it
    imply that values and types stay the same.

    >>> x = relay.var("x", shape=(2, 6))
    >>> rows = relay.strided_slice(relay.shape_of(x), [0], [1])
    >>> shape = relay.concatenate([rows, relay.const([3, 2])], axis=0)
    >>> mod = tvm.IRModule.from_expr(relay.transpose(relay.reshape(x, shape), [0, 1, 2]))
    >>> print(tvm_passes.as_text(tvm_passes.Canonicalize()(mod)))
    def @main(%x: Tensor[(2, 6), float32]) -> Tensor[(2, 3, 2), float32] {
      reshape(%x, newshape=[2, 3, 2])
    }
    """

    # Any rule may make another apply: a folded bound makes a slice static, a static slice a shape known.
    rules = (
        FoldShapeArithmetic,
        *STATIC_FORMS,
        LikeKnownShape,
        *IDENTITIES,
        TwiceForSumOfEquals,
        SeparateDifferenceOfEquals,
        SquareForPower,
        KeepZeroInMemory,
        NothingIsMade,
        MeanOfNothing,
        PadWithFilled,
        PruneBranch,
        WholeOfMovedParts,
        ConcatenateForWhere,
    )


def canonical_pipeline() -> Sequential:
    """The passes that both frontends end with."""
    return Sequential([Canonicalize()], name="canonicalize")
