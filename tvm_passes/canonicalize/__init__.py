"""Bring what PyTorch's and ONNX's importers spell in many ways to one spelling.

So a pass needs one pattern for an idiom and not one for each frontend and version, and more types are
static than the importers find. Results stay the same numbers.
"""

from tvm.ir.transform import Sequential

from .._rule import RulePass
from .drop_identities import IDENTITIES
from .fold_shape_arithmetic import FoldShapeArithmetic
from .prune_branches import PruneBranch
from .static_forms import STATIC_FORMS


class Canonicalize(RulePass):
    """Fold shape arithmetic, make dynamic operators static, drop what changes nothing and dead branches."""

    # Any rule may make another apply: a folded bound makes a slice static, a static slice a shape known.
    rules = (FoldShapeArithmetic, *STATIC_FORMS, *IDENTITIES, PruneBranch)


def canonical_pipeline():
    """What both frontends end with."""
    return Sequential([Canonicalize()], name="canonicalize")
