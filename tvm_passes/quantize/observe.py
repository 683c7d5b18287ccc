"""Run a network on images, and find out what its convolutions read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from operator import length_hint
from typing import Union

import numpy as np

from topi_ext import cpu_target

import tvm
from tvm import relay

from .. import runtime
from ..analysis.constants import with_weights
from ..analysis.convolution import as_constant
from ..analysis.targets import target_of
from ..cleanup.limit_fusion import LimitFusion
from ..convolution.fused_call import FusedCall
from ..convolution.identify_weights import IdentifyWeights
from ..engine.expressions import constant, known_shape, location, op_name, static_shape
from ..engine.graph import Graph
from ..engine.in_order import passes_in_order
from ..progress import progress_bar
from ..runtime.params_argument import checked
from .calibration import MIN_SNR, Calibration, CalibrationError, Observed
from .convolutions import convolutions_of, why_not_int8
from .histogram import METHODS, Histogram
from .in_int8 import InInt8, steps_in_int8
from .numbers import quantized_weights, rounded_as_int8, step_of

Batch = Union[np.ndarray, tuple[np.ndarray, ...], Mapping[str, np.ndarray]]
MAX_SAMPLES = 2**20  # of a tensor: of larger ones, only some rows are counted
BATCHES_FOR_ERRORS = 8
MAX_SNR = 120.0  # dB: what float32 can tell
BIND = "bind its weights, and give the pipeline for the GPU that it will run on"
OF_QDQ = (
    "its convolutions are of integers already, as QLinearConv is, and stay as they are: write the network "
    "with QuantizeLinear and DequantizeLinear, as by quant_format=QuantFormat.QDQ of ONNX Runtime"
)
GIVE = "give such as detection_pipeline(target, dtype='int8')"
ROUNDING = 1e-6  # of a power: a smaller variance may be float32's rounding


def calibrate(
    mod: tvm.IRModule,
    batches: Iterable[Batch],
    passes: tvm.transform.Sequential,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
    *,
    method: str = "mse",
    min_snr: float = MIN_SNR,
    target: str | tvm.target.Target | None = None,
) -> Calibration:
    """Run a network on images, and find the bounds that its tensors need in int8.

    Parameters
    ----------
    mod : tvm.IRModule
        The network as it was imported.
    batches : iterable
        Inputs like those that the network will get, 10 to 100 images: for each call a dict by name, a tuple
        in order, or the only array.
    passes : tvm.transform.Sequential
        The pipeline that the network will be compiled with, such as `detection_pipeline(target, "int8")`.
        Convolutions are observed as they are where it quantizes them.
    params : dict of str to tvm.nd.NDArray, optional
        The weights, if they are not bound yet.
    method : str
        How a bound is chosen from all magnitudes of a tensor: "mse", of the smallest mean squared error;
        "entropy", of the smallest loss of information; "percentile", which one in ten thousand exceeds; or
        "maximum".
    min_snr : float
        A convolution stays in floating point if the ratio of its result's variance to the power of the error
        which int8 makes there is less than this, in decibels.
    target : str or tvm.target.Target, optional
        The CPU to run it on, by default this one.
    """
    if method not in METHODS:
        raise ValueError(f"calibrate: method must be one of {', '.join(METHODS)}, not {method!r}")
    if math.isnan(min_snr):  # with which all convolutions would be in int8
        raise ValueError("calibrate: min_snr must be a number of decibels, not NaN")
    machine = target_of(target or cpu_target(), "calibrate")
    network = Network.of(mod, passes, params)
    histograms, kept = network.histograms(batches, machine)
    bounds = {node: histogram.bound(method) for node, histogram in histograms.items()}
    snr = network.signal_to_noise(bounds, kept, machine)
    observed = {
        name: network.observed(conv, bounds, snr.get(conv), min_snr) for conv, name in network.names.items()
    }
    return Calibration(observed, method, next(iter(histograms.values())).batches)


class Network:
    """A network as it is where its convolutions are quantized."""

    @classmethod
    def of(
        cls,
        mod: tvm.IRModule,
        passes: tvm.transform.Sequential,
        params: Mapping[str, tvm.nd.NDArray] | None = None,
    ) -> Network:
        """The network that the passes up to `InInt8` make of an imported one."""
        mod = with_weights(mod, checked(mod, params, "calibrate"))
        return cls(relay.transform.InferType()(_before(passes)(mod))["main"])

    def __init__(self, main: relay.Function) -> None:
        self.main, self.graph = main, Graph(main)
        self.names = convolutions_of(self.graph)
        self.in_int8 = [conv for conv in self.names if why_not_int8(self.graph, conv) is None]
        if not self.in_int8:
            is_of_integers = any(op_name(node) == "qnn.conv2d" for node in self.graph.nodes)
            what_to_do = OF_QDQ if is_of_integers else BIND
            raise CalibrationError(
                f"the network has no convolution that can be computed in int8: {what_to_do}"
            )

    def histograms(
        self, batches: Iterable[Batch], target: tvm.target.Target
    ) -> tuple[dict[relay.Expr, Histogram], list[Batch]]:
        """The histogram of each tensor that a convolution reads or writes, and the first batches."""
        found = {node: Histogram() for conv in self.names for node in _tensors(conv)}
        outputs = [each for node in found for each in (_sample(node), relay.max(relay.abs(node)))]
        run = self._run(outputs, target)
        kept: list[Batch] = []
        with progress_bar("Calibrate", length_hint(batches)) as advance:
            for number, batch in enumerate(batches, 1):
                try:
                    samples = run(batch)
                except (TypeError, ValueError) as error:  # it has another size, for example
                    kind = TypeError if isinstance(error, TypeError) else ValueError
                    raise kind(f"calibrate: batch {number}: {error}") from error
                for (node, histogram), values_, largest in zip(found.items(), samples[::2], samples[1::2]):
                    try:
                        histogram.add(values_, float(largest))
                    except ValueError as reason:
                        raise CalibrationError(_of_batch(number, node, reason)) from reason
                if len(kept) < BATCHES_FOR_ERRORS:
                    kept.append(batch)
                advance()
        if not kept:
            raise CalibrationError("there is no batch to calibrate with: give some")
        return found, kept

    def signal_to_noise(
        self, bounds: dict[relay.Expr, float], batches: list[Batch], target: tvm.target.Target
    ) -> dict[relay.Expr, float]:
        """For each convolution, the ratio of its result's variance to the power of int8's error, in decibels.

        It reads float32, which it rounds itself: so the error is its own, without those of layers before.
        """
        in_int8 = {conv: self.observed(conv, bounds, MAX_SNR, MIN_SNR) for conv in self.names}
        # Also those that are shared with tensors of larger numbers.
        steps = steps_in_int8(self.graph, in_int8)
        steps |= {node: step_of(bound) for node, bound in bounds.items() if node not in steps}
        outputs = []
        for conv in self.in_int8:
            # In steps, since float32 has no squares of numbers such as 1e20 or 1e-25.
            in_steps = relay.const(1 / step_of(bounds[conv]), "float32")
            result, rounded = (relay.multiply(each, in_steps) for each in (conv, _as_in_int8(conv, steps)))
            mean = relay.mean(result, [1, 2], keepdims=True)
            outputs.append(relay.squeeze(mean, [1, 2]))
            for each in (relay.subtract(result, mean), relay.subtract(rounded, result)):
                outputs.append(relay.mean(_squared(each), [1, 2]))
        run = self._run(outputs, target)
        found: list[list[np.ndarray]] = []
        with progress_bar("Measure the errors of int8", len(batches)) as advance:
            for batch in batches:
                found.append(run(batch))
                advance()
        rows = [np.concatenate(each).astype("float64") for each in zip(*found)]
        return {
            conv: min(
                _decibels(_signal(mean, within), float(error.mean(0).sum())),
                _of_median_image(mean, within, error),
            )
            for conv, mean, within, error in zip(self.in_int8, rows[::3], rows[1::3], rows[2::3])
        }

    def observed(
        self, conv: relay.Call, bounds: Mapping[relay.Expr, float], snr: float | None, min_snr: float
    ) -> Observed:
        call = FusedCall(conv)
        return Observed(
            data=bounds[call.data],
            result=bounds[conv],
            residual=None if call.residual is None else bounds[call.residual],
            snr=snr,
            in_float=snr is None or snr < min_snr,
            filters=known_shape(call.weight),
            where=location(conv),
        )

    def _run(
        self, outputs: list[relay.Expr], target: tvm.target.Target
    ) -> Callable[[Batch], list[np.ndarray]]:
        """A function of a batch that computes these expressions over the network's own."""
        main = relay.Function(self.main.params, relay.Tuple(outputs))
        mod = tvm.transform.Sequential([LimitFusion(), IdentifyWeights()])(tvm.IRModule.from_expr(main))
        model = runtime.compile(mod, target)

        def run(batch: Batch) -> list[np.ndarray]:
            if isinstance(batch, Mapping):
                return list(model(**batch).values())
            return list(model(*(batch if isinstance(batch, (tuple, list)) else (batch,))).values())

        return run


def _before(passes: tvm.transform.Sequential) -> tvm.transform.Sequential:
    """The passes up to the one that quantizes."""
    if not isinstance(passes, tvm.transform.Pass):
        raise TypeError(f"calibrate: passes must be a pipeline, not {type(passes).__name__}: {GIVE}")
    before: list[tvm.transform.Pass] = []
    for each in passes_in_order(passes):
        if each.info.name == InInt8.__name__:
            return tvm.transform.Sequential(before)
        before.append(each)
    raise ValueError(f"calibrate: the pipeline has no InInt8: {GIVE}")


def _tensors(conv: relay.Call) -> list[relay.Expr]:
    """What a convolution reads, and its result."""
    call = FusedCall(conv)
    return [each for each in (call.data, call.residual, conv) if each is not None]


def _sample(tensor: relay.Expr) -> relay.Expr:
    """Some rows of a tensor; a small one whole."""
    shape = static_shape(tensor)
    if shape is None or math.prod(shape) <= MAX_SAMPLES:
        return tensor
    step = math.ceil(math.prod(shape) / MAX_SAMPLES)
    return relay.strided_slice(tensor, [0], [shape[1]], [min(step, shape[1])], axes=[1])


def _as_in_int8(conv: relay.Call, steps: Mapping[relay.Expr, float]) -> relay.Call:
    """The convolution of data, weights and residual that are rounded as in int8."""
    call = FusedCall(conv)
    weights, of_filters = quantized_weights(np.asarray(constant(call.weight)))
    call.data = rounded_as_int8(call.data, steps[call.data])
    call.weight = as_constant(weights * of_filters[:, None, None, None], "float32")
    if call.residual is not None:
        call.residual = rounded_as_int8(call.residual, steps[call.residual])
    return call.call()


def _of_batch(number: int, node: relay.Expr, reason: ValueError) -> str:
    place = f" at {location(node)}" if location(node) else ""
    return f"batch {number}{place}: {reason}; leave it out, or look at what the network computes of it"


def _squared(tensor: relay.Expr) -> relay.Call:
    return relay.multiply(tensor, tensor)


def _signal(mean: np.ndarray, within: np.ndarray) -> float:
    """The variance of a result, over images and pixels, summed over its channels.

    `mean` and `within`: the mean of each image's channel and the variance within it. The mean over all tells
    nothing about an image: that of a detector's scores is mostly the bias. Only where nothing ever changes,
    as in a test with one image of one color, the power has to do.
    """
    inside = within.mean(0).sum()
    variance, power = inside + mean.var(0).sum(), inside + (mean**2).mean(0).sum()
    return float(variance if variance > power * ROUNDING else power)


def _of_median_image(mean: np.ndarray, within: np.ndarray, error: np.ndarray) -> float:
    """The ratio in decibels that half of the images have.

    One image of much larger numbers outweighs all others in a ratio of sums: its bounds leave no steps to
    them, and its own signal is large. Signal is what differs from the median mean, which it does not move.
    """
    inside = within.sum(1)
    variance = inside + ((mean - np.median(mean, 0)) ** 2).sum(1)
    power = inside + (mean**2).sum(1)
    signals = np.where(variance > power * ROUNDING, variance, power)
    return float(np.median([_decibels(*each) for each in zip(signals, error.sum(1))]))


def _decibels(signal: float, error: float) -> float:
    if not signal or not error:
        return MAX_SNR
    return min(MAX_SNR, 10 * math.log10(signal / error))
