"""Bring a network to the layout NHWC, from its first convolution to its last."""

import tvm
from tvm import relay

from . import _layouts
from ._fold_weights import FoldWeights

CONVERTED = {
    "nn.conv2d": ["NHWC", "default"],
    **{
        name: ["NHWC"]
        for name in (*_layouts.SHUFFLES, _layouts.MULTISCALE_ROI_ALIGN, "image.resize2d", "nn.max_pool2d")
    },
}


def ConvertToNHWC():
    """TVM's ConvertLayout, with what it needs before and after, at any opt_level.

    Bias is added by nn.bias_add in the imported graph, which ConvertLayout does not go through; as `add` it
    does. What it puts around constants is folded.
    """

    def transform(mod, _context):
        with _at_opt_level_3():
            for step in (
                relay.transform.InferType(),
                relay.transform.CanonicalizeOps(),
                relay.transform.ConvertLayout(CONVERTED),
                FoldWeights(),
            ):
                mod = step(mod)
            return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="ConvertToNHWC")


def FoldIntoConvolutions():
    """TVM's own passes that fold factors, such as those of batch norm, into the weights before or after."""

    def transform(mod, _context):
        with _at_opt_level_3():
            for step in (
                relay.transform.InferType(),
                relay.transform.SimplifyInference(),
                relay.transform.CanonicalizeOps(),
                FoldWeights(),
                relay.transform.BackwardFoldScaleAxis(),
                FoldWeights(),
                relay.transform.ForwardFoldScaleAxis(),
                FoldWeights(),
            ):
                mod = step(mod)
            return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="FoldIntoConvolutions")


def _at_opt_level_3():
    """At a lower one TVM leaves some of these passes out in silence."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=3,
        required_pass=current.required_pass,
        disabled_pass=current.disabled_pass,
        config=current.config,
    )
