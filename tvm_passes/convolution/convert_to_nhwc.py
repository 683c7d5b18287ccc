"""Convert a network to the layout NHWC, from its first convolution to its last."""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial

from topi_ext.corrections.convert_layout import GRID_SAMPLE, MULTISCALE_ROI_ALIGN, SHUFFLES, computing_in

import tvm
from tvm import relay

from ..analysis.constants import fold_constants
from ..analysis.half_precision import HALF, holds
from ..analysis.targets import target_of
from ..engine.expressions import constant, location
from ..engine.graph import calls_of
from ..engine.module_pass import Pass
from ..engine.report import PassReport
from ..engine.stock import apply_stock

CONVERTED = {
    "nn.conv2d": ["NHWC", "default"],
    **{
        name: ["NHWC"]
        for name in (*SHUFFLES, MULTISCALE_ROI_ALIGN, GRID_SAMPLE, "image.resize2d", "nn.max_pool2d")
    },
}


class ConvertToNHWC(Pass):
    """TVM's ConvertLayout, with what it needs before and after, at any opt_level.

    `target` is the target to compile for, by default the current one: a convolution for which it has no
    kernel in NHWC, such as a grouped one in float32 on CUDA, stays as it is, between the transposes that this
    takes. Without a target all are converted. `to_be`: the type to which `InMixedPrecision` will convert
    float32, in which there may be a kernel.

    The imported graph adds bias with nn.bias_add, which ConvertLayout cannot pass, so it becomes `add`. The
    transposes that ConvertLayout puts around constants are folded.

    Why legal: ConvertLayout moves axes and nothing else, and moves them back wherever an operator, or the
    function's caller, needs them as they were.

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

    def __init__(self, target: str | tvm.target.Target | None = None, to_be: str | None = None) -> None:
        if to_be is not None and to_be not in HALF:
            raise ValueError(f"ConvertToNHWC: to_be must be None or one of {', '.join(HALF)}, not {to_be!r}")
        target = target_of(target, type(self).__name__) if target else None
        super().__init__(partial(_converted, target=target, to_be=to_be))


def _converted(
    mod: tvm.IRModule, report: PassReport, target: tvm.target.Target | None, to_be: str | None
) -> tvm.IRModule:
    def computed_in(weights: relay.Constant, dtype: str) -> str:
        return to_be if to_be and dtype == "float32" and holds(to_be, constant(weights)) else dtype

    before = _convolutions(mod, in_nhwc=True)
    with target or contextlib.nullcontext(), computing_in(computed_in):
        steps = relay.transform.CanonicalizeOps(), relay.transform.ConvertLayout(CONVERTED)
        result = fold_constants(apply_stock(relay.transform.InferType(), *steps, to=mod))
    for place in (_convolutions(result, in_nhwc=True) - before).elements():
        report.rewrote(report.name, place)
    for place in _convolutions(result, in_nhwc=False).elements():
        report.refused(report.name, place, "the target has no kernel for the convolution in NHWC")
    return result


def _convolutions(mod: tvm.IRModule, in_nhwc: bool) -> Counter[str]:
    """Where in the source model there are convolutions in NHWC, or others, and how many."""
    return Counter(
        location(call)
        for call in calls_of(mod, "nn.conv2d")
        if (str(call.attrs.data_layout) == "NHWC") == in_nhwc
    )
