"""Give constant weights of convolutions an id, by which a library knows that it has packed them."""

from __future__ import annotations

from typing import Any

from tvm import relay
from tvm.relay.dataflow_pattern import is_op

from ..engine.rule import RulePass
from . import weight_id


class OfConstantWeights(weight_id.OfConstantWeights):
    pattern = is_op("topi_ext.conv2d_nhwc")(None)

    def array(self, weights: relay.Expr) -> Any:
        return weights.data if isinstance(weights, relay.Constant) else None


class IdentifyWeights(RulePass):
    """Let oneDNN pack constant weights of `topi_ext.conv2d_nhwc` once, and not in each call.

    It comes last, since an id is that of the weights as they are now: whatever changes weights drops it.

    >>> x, weight = relay.var("x", shape=(1, 6, 10, 8)), relay.const(np.ones((8, 1, 1, 8), "float32"))
    >>> mod = tvm.IRModule.from_expr(topi_ext.conv2d_nhwc(x, weight))
    >>> print(tvm_passes.IdentifyWeights()(mod)["main"].body.attrs["weight_id"])
    95c9bbfba6b58f7e60fcac3d
    """

    rules = (OfConstantWeights,)
