"""Static shapes from the image to the detections, whose number becomes a value instead of a length."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import tvm
from tvm import relay
from tvm.relay.ty import is_dynamic

from ...engine.expressions import location, op_name
from ...engine.graph import Graph
from ...engine.module_pass import Pass
from ...engine.report import PassReport
from ..padding.operators import handle
from ..padding.padded import NotStatic
from ..padding.walk import Walk
from .outputs import OUTPUTS, is_cut


class MakeDetectionStatic(Pass):
    """Run what follows a filter or an NMS on padded rows, and carry along how many of them are valid.

    Why legal: each operator between a filter and the outputs is known to compute the valid rows as before,
    whatever the padding holds; a filter, an NMS and a top-k are told which rows are valid. If any operator is
    not known to do so, the module is left unchanged. The rows of several images may be concatenated for a
    head, and split again by slices whose bounds are sums of the numbers of valid rows. A reduction over the
    rows gets, for padding, the value that changes nothing; what is written into rows by their indices is
    written nowhere for padding; and what is computed from the number of rows is computed from how many are
    valid.

    Parameters
    ----------
    outputs : str
        "cut": the outputs are the original ones, cut to the number of detections at the very end; only there
        are shapes dynamic. "padded": the outputs have the maximum number of rows; those after the first
        `num_detections`, an int32 scalar that becomes the last output, are 0. For several images it is a
        vector with one number per image, in the order of the outputs. The function attribute `padded_rows`
        says, for each output, which axis is padded and which number counts its rows.

    >>> import frontends, torch, torchvision
    >>> class Detect(torch.nn.Module):
    ...     def forward(self, boxes, scores, ids):
    ...         return boxes[torchvision.ops.batched_nms(boxes, scores, ids, 0.5)[:5]]
    >>> detections = torch.rand(9, 4), torch.rand(9), torch.arange(9)
    >>> mod, _ = frontends.from_pytorch(Detect(), detections)
    >>> mod = tvm_passes.default_pipeline()(mod)
    >>> print(tvm_passes.as_text(tvm_passes.MakeDetectionStatic("padded")(mod)))
    def @main(%boxes: Tensor[(9, 4), float32], %scores: Tensor[(9), float32],
        %ids: Tensor[(9), int64], input_names=["boxes", "scores", "ids"],
        output_names=["output", "num_detections"], padded_rows=[[0, 0]])
        -> (Tensor[(5, 4), float32], int32) {
      %0 = topi_ext.batched_nms(%boxes, %scores, %ids, 0, 0.5f, 0f, has_score_threshold=0,
          has_valid_count=0, max_output_size=5);
      %1 = %0.1;
      %2 = expand_dims(%1, axis=0);
      %3 = squeeze(%2);
      %4 = less(const[(5,), int32], %3);
      %5 = %0.0;
      %6 = maximum(%5, 0i64);
      %7 = reshape(%4, newshape=[5, 1]);
      %8 = take(%boxes, %6, axis=0);
      %9 = where(%7, %8, 0f);
      (%9, %3)
    }
    """

    def __init__(self, outputs: str = "cut") -> None:
        if outputs not in OUTPUTS:
            raise ValueError(
                f"MakeDetectionStatic: outputs must be one of {', '.join(OUTPUTS)}, not {outputs!r}"
            )
        self.keeps_types = outputs == "cut"  # padded outputs have other types
        super().__init__(partial(_made_static, outputs=outputs))


def _made_static(mod: tvm.IRModule, report: PassReport, outputs: str) -> tvm.IRModule:
    if "main" not in [name.name_hint for name in mod.get_global_vars()]:
        return mod  # other functions may be called with any rows
    typed = relay.transform.InferType()(mod)
    try:
        function = _with_fixed_shapes(typed["main"], OUTPUTS[outputs])
        if function is None:
            _check_static(typed["main"])
            return mod
        if outputs == "cut" and is_cut(typed["main"]):
            return mod
    except NotStatic as reason:
        report.refused(report.name, "", str(reason))
        if outputs == "padded":  # which whoever asked for it relies on
            warnings.warn(f"{report.name}: the outputs are not padded: {reason}", stacklevel=2)
        return mod
    report.rewrote(report.name, "main")
    typed.update_func(typed.get_global_var("main"), function)
    return relay.transform.InferType()(typed)


def _check_static(function: relay.Function) -> None:
    """Raise NotStatic if a shape is dynamic although nothing depends on a filter or an NMS that is known."""
    for node in Graph(function).nodes:
        if isinstance(node, (relay.Var, relay.Call)) and is_dynamic(node.checked_type):
            where = location(node) or op_name(node) or getattr(node, "name_hint", "a function")
            raise NotStatic(f"{where}: its shape is known only at run time, and not by a known filter or NMS")


def _with_fixed_shapes(function: relay.Function, finish: Callable) -> relay.Function | None:
    """The static function, or None if nothing in it depends on what is detected."""
    walk, body = Walk(Graph(function), handle), function.body
    if walk.of(body) is body:
        return None
    body, attrs = finish(walk, walk.result(body), function.attrs)
    return relay.Function(function.params, body, None, function.type_params, attrs, function.span)
