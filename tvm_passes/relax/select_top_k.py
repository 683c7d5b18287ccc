"""Compute topk on CUDA by this project's selection."""

from __future__ import annotations

from topi_ext.sort.op import topk

import tvm
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard

from ..analysis.targets import is_for_gpu
from ..engine.contract import LEGAL, Answer, Match, Refusal, Rule
from .graph import shape_of
from .rule_pass import rule_pass


class OfTopK(Rule):
    """Replace topk with `topi_ext.topk`, which does not sort what is not among the first.

    Why legal: both order the numbers, and NaN, alike. Of equal ones, TVM does not say which come first.
    """

    data = wildcard()
    pattern = is_op("relax.topk")(data)

    def where(self, match: Match) -> bool:
        return str(match.root.attrs.ret_type) == "both"

    def plan(self, match: Match) -> Answer | Refusal:
        shape, attrs = shape_of(match.data), match.root.attrs
        if shape is None or not 0 < int(attrs.k) <= shape[int(attrs.axis)]:
            return Refusal("the shape is dynamic, or k is not the length of a result")
        return LEGAL

    def rewrite(self, match: Match, plan: object) -> Expr:
        attrs = match.root.attrs
        dtype = str(attrs.dtype) if isinstance(attrs.dtype, str) else str(attrs.dtype.dtype)
        return topk(match.data, int(attrs.k), axis=int(attrs.axis), largest=bool(attrs.largest), dtype=dtype)


def SelectTopK(target: tvm.target.Target) -> tvm.transform.Pass:
    """Select the first numbers of rows on CUDA, where TVM sorts all of them; nothing on other targets."""
    return rule_pass("SelectTopK", *([OfTopK()] if is_for_gpu(target) else []))
