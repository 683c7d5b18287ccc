"""Fold `out_scale` into the constants before it, so that no kernel multiplies by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tvm
from tvm import relay

# Activations f with f(s * x) = s * f(x) for s above 0; the bounds of clip are multiplied as well.
HOMOGENEOUS = {"none", "relu", "leaky_relu", "prelu", "clip"}


def folded(
    attrs: tvm.ir.Attrs, arguments: Sequence[relay.Expr], _types: Sequence[relay.Type]
) -> relay.Call | None:
    """The call without an `out_scale`, for Relay's pass `Legalize`; None where it stays as it is.

    Only a convolution of int8 has a scale for each filter, which takes it; it would change how weights of a
    float type are rounded.
    """
    factor = float(attrs["out_scale"])
    if factor == 1 or not attrs["has_scale"]:
        return None
    if not {str(attrs["activation"]), str(attrs["final_activation"])} <= HOMOGENEOUS:
        return None
    data, weight, bias, residual, slope, scale = arguments
    if not all(isinstance(each, relay.Constant) for each in (bias, scale)) or bias.data.dtype == "bfloat16":
        return None
    written = dict(attrs.items())
    for name in ("activation", "final_activation"):
        if attrs[name] == "clip":
            for bound in (f"{name}_low", f"{name}_high"):
                written[bound] = float(attrs[bound]) * factor
    written |= {"out_scale": 1.0, "residual_scale": float(attrs["residual_scale"]) * factor}
    bias, scale = (relay.const(each.data.numpy() * np.float32(factor), "float32") for each in (bias, scale))
    call_attrs = tvm.ir.make_node("DictAttrs", **written)
    return relay.Call(
        relay.op.get("topi_ext.conv2d_nhwc"), [data, weight, bias, residual, slope, scale], call_attrs
    )
