"""Give constant weights of convolutions an id, by which a library knows that it has packed them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import Expr
from tvm.relax.dpl import is_op

from ..convolution import weight_id
from .rule_pass import rule_pass


class OfConstantWeights(weight_id.OfConstantWeights):
    pattern = is_op("topi_ext.conv2d_nhwc")(varg_default_wildcard=True)

    def array(self, weights: Expr) -> Any:
        return weights.value if isinstance(weights, tvm.ir.GenericConst) else None


def IdentifyWeights() -> tvm.transform.Pass:
    """Let oneDNN pack constant weights of `topi_ext.conv2d_nhwc` once, and not in each call.

    It comes last, since an id is that of the weights as they are now: whatever changes weights drops it.
    """
    return rule_pass("IdentifyWeights", OfConstantWeights())
