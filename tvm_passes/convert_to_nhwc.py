"""Bring a network to the layout NHWC, from its first convolution to its last."""

from __future__ import annotations

import contextlib

import tvm
from tvm import relay

from . import _layouts
from ._fold_weights import FoldWeights
from ._graph import Graph, relay_functions
from ._matchers import op_name

CONVERTED = {
    "nn.conv2d": ["NHWC", "default"],
    **{
        name: ["NHWC"]
        for name in (*_layouts.SHUFFLES, _layouts.MULTISCALE_ROI_ALIGN, "image.resize2d", "nn.max_pool2d")
    },
}


def ConvertToNHWC(target: str | tvm.target.Target | None = None) -> tvm.transform.Pass:
    """TVM's ConvertLayout, with what it needs before and after, at any opt_level.

    `target` is what the network is for, by default the current one: a convolution for which it has no kernel
    in NHWC, such as one in groups on CUDA, stays as it is, between the transposes that this takes. Without
    a target all are converted.

    Bias is added by nn.bias_add in the imported graph, which ConvertLayout does not go through; as `add` it
    does. What it puts around constants is folded.

    Why legal: ConvertLayout moves axes and nothing else, and moves them back wherever an operator, or whoever
    calls the function, wants them as they were.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((8, 8, 3, 3), "float32"))
    >>> y = relay.nn.relu(relay.nn.conv2d(x, weight, padding=1))
    >>> mod = tvm.IRModule.from_expr(relay.nn.conv2d(y, weight, padding=1))
    >>> print(tvm_passes.as_text(tvm_passes.ConvertToNHWC()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 8, 6, 10), float32] {
      %0 = layout_transform(%x, src_layout="NCHW", dst_layout="NHWC");
      %1 = nn.conv2d(%0, const[(3, 3, 8, 8), float32], padding=[1, 1, 1, 1], data_layout="NHWC",
          kernel_layout="HWIO");
      %2 = nn.relu(%1);
      %3 = nn.conv2d(%2, const[(3, 3, 8, 8), float32], padding=[1, 1, 1, 1], data_layout="NHWC",
          kernel_layout="HWIO");
      layout_transform(%3, src_layout="NHWC", dst_layout="NCHW")
    }
    """

    chosen = tvm.target.Target(target) if target else None

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with _at_opt_level_3(), chosen or contextlib.nullcontext():
            for step in (
                relay.transform.InferType(),
                relay.transform.CanonicalizeOps(),
                relay.transform.ConvertLayout(CONVERTED),
                FoldWeights(),
            ):
                mod = step(mod)
            return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="ConvertToNHWC")


def FoldIntoConvolutions() -> tvm.transform.Pass:
    """TVM's own passes that fold factors, such as those of batch norm, into the weights before or after.

    They would fold factors that are computed, too, such as those of channel attention, and make weights of
    constants ones that are known only at run time: then that step is left out.

    Why legal: a convolution is linear, so a factor of each filter or of each channel can be part of the
    weights.

    >>> x, weight = relay.var("x", shape=(1, 8, 6, 10)), relay.const(np.ones((4, 8, 3, 3), "float32"))
    >>> gamma, beta, mean, variance = (relay.const(np.ones(4, "float32")) for _ in range(4))
    >>> norm = relay.nn.batch_norm(relay.nn.conv2d(x, weight), gamma, beta, mean, variance)
    >>> mod = tvm.IRModule.from_expr(norm[0])
    >>> print(tvm_passes.as_text(tvm_passes.FoldIntoConvolutions()(mod)))
    def @main(%x: Tensor[(1, 8, 6, 10), float32]) -> Tensor[(1, 4, 4, 8), float32] {
      %0 = nn.conv2d(%x, const[(4, 8, 3, 3), float32], padding=[0, 0, 0, 0]);
      add(%0, const[(4, 1, 1), float32])
    }
    """

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with _at_opt_level_3():
            for step in (
                relay.transform.InferType(),
                relay.transform.SimplifyInference(),
                relay.transform.CanonicalizeOps(),
                FoldWeights(),
            ):
                mod = step(mod)
            for step in (relay.transform.BackwardFoldScaleAxis(), relay.transform.ForwardFoldScaleAxis()):
                folded = FoldWeights()(step(mod))
                if _constant_weights(folded) == _constant_weights(mod):
                    mod = folded
            return mod

    return tvm.transform.module_pass(transform, opt_level=0, name="FoldIntoConvolutions")


def _constant_weights(mod: tvm.IRModule) -> int:
    """How many convolutions know their weights."""
    functions = relay_functions(mod).values()
    calls = [node for function in functions for node in Graph(function).nodes if op_name(node) == "nn.conv2d"]
    return sum(isinstance(call.args[1], relay.Constant) for call in calls)


def _at_opt_level_3() -> tvm.transform.PassContext:
    """At a lower one TVM leaves some of these passes out in silence."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=3,
        required_pass=current.required_pass,
        disabled_pass=current.disabled_pass,
        config=current.config,
    )
