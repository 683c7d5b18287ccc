"""The bounds that a network brings along which was quantized elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relay

from ..analysis.precision import CONV2D_NHWC
from ..convolution.fused_call import FusedCall
from ..engine.expressions import known_shape, location, op_name
from .calibration import Calibration, CalibrationError, Observed
from .float_from_qdq import Range, range_of
from .numbers import LEVELS
from .observe import Network


def calibration_of(
    mod: tvm.IRModule,
    passes: tvm.transform.Sequential,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
) -> Calibration:
    """The calibration that a network has in it which was quantized elsewhere, as ONNX Runtime writes it.

    Parameters
    ----------
    mod : tvm.IRModule
        The network as it was imported, with quantization and dequantization around its tensors.
    passes : tvm.transform.Sequential
        The pipeline that it will be compiled with, such as `detection_pipeline(target, "int8")`, whose
        `FloatFromQDQ` makes clips of them.
    params : dict of str to tvm.nd.NDArray, optional
        The weights, if they are not bound yet.

    Convention
    ----------
    - Of int8 with zero point 0, steps are the network's own. Other tensors get a step that serves their
      farther end: one of uint8 with zero point 0 has 127 of its 255 steps.
    - Convolutions of data without bounds stay in floating point. What int8 costs is not measured: `snr` is
      None. `calibrate` measures it, on images.
    """
    network = Network.of(mod, passes, params)
    found = {name: _observed(conv, conv in network.in_int8) for conv, name in network.names.items()}
    if all(each.in_float for each in found.values()):
        raise CalibrationError(
            "the network has no bounds of what its convolutions read: use calibrate, with images"
        )
    return Calibration(found, method="imported")


def _observed(conv: relay.Call, can_be_int8: bool) -> Observed:
    call = FusedCall(conv)
    data = _bound(call.data)
    return Observed(
        data=data or 0.0,
        result=_bound(conv) or 0.0,
        residual=None if call.residual is None else _bound(call.residual),
        in_float=data is None or not can_be_int8,
        filters=known_shape(call.weight),
        where=location(conv),
    )


def _bound(tensor: relay.Expr) -> float | None:
    """The larger end of a clipped tensor; of -128 and 127 steps, 127."""
    range_ = _range(tensor)
    return None if range_ is None else max(range_[1], -range_[0] * LEVELS / (LEVELS + 1))


def _range(tensor: relay.Expr) -> Range | None:
    if op_name(tensor) != CONV2D_NHWC:
        return range_of(tensor, _range)
    call = FusedCall(tensor)
    last = call.final_activation or (None if call.residual is not None else call.activation)
    name, *ends = (last,) if last is None or isinstance(last, str) else last
    return (ends[0], ends[1]) if name == "clip" else None
