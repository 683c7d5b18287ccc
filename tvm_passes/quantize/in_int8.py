"""Compute the convolutions of a network in int8, and keep what lies between them in int8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from topi_ext.corrections.convert_layout import MULTISCALE_ROI_ALIGN

import tvm
from tvm import relay

from ..analysis.operators import MOVED, SAME, known_of
from ..analysis.precision import is_float32
from ..convolution.fused_call import FusedCall
from ..engine.expressions import constant, is_injective, location, op_name, scalar
from ..engine.graph import Graph
from ..engine.module_pass import Pass
from ..engine.report import PassReport
from .calibration import Calibration, CalibrationError, Observed
from .convolutions import convolutions_of, why_not_int8
from .numbers import LEVELS, dequantized, quantized, quantized_weights, step_of

TAKE = ("nn.max_pool2d", "nn.relu", "split", "strided_slice")
MOST_STEPS_LOST = 4  # a tensor has at least 127 / 4 steps where it shares them with one of larger numbers


class InInt8(Pass):
    """Compute `topi_ext.conv2d_nhwc` of constant float32 weights in int8, as a calibration says.

    Weights become int8 with a step per filter, tensors int8 with a step each, which the calibration's bound
    gives. A convolution whose result other convolutions in int8 read, perhaps after a max pooling, a
    concatenation, or what else only moves elements, writes int8; all those tensors have one step. If
    something else reads it too, it reads int8 times the step, where TVM fuses this into the reader; otherwise
    the convolution writes float32, which is rounded to int8 for the convolutions. So it does where the one
    step would leave a tensor that something else reads less than a quarter of its own 127. So what follows
    the last convolutions of a network is computed as before.

    RoIAlign reads int8 where all of its feature maps are kept in int8 for convolutions, such as those of a
    region proposal network, and writes int8 where convolutions in int8 read it, such as those of a box head.
    Each level has a step of its own, and so has the result, since a mean of elements is another number.

    The first convolutions, which read the image, depthwise ones, and those that the calibration keeps in
    floating point are computed as before; they may write int8.

    Why legal: it rounds numbers as the calibration says, as requested, and changes nothing else: sums are
    exact, and scales, bias and activations float32. The operators in between are those that give the same
    for int8 as for the numbers it stands for; RoIAlign computes its means in float32, of features that are
    rounded as the convolutions beside it read them, and rounds a mean once, as the convolutions behind it
    would. A network with a convolution that the calibration does not know is refused as a whole: its bounds
    would be another network's.

    >>> x = relay.var("x", shape=(1, 6, 10, 8))
    >>> first, second = (relay.const(np.full((8, 1, 1, 8), 1 / count, "float32")) for count in (2, 4))
    >>> y = topi_ext.conv2d_nhwc(topi_ext.conv2d_nhwc(x, first, activation="relu"), second)
    >>> mod = relay.transform.InferType()(tvm.IRModule.from_expr(y))
    >>> images = [np.ones((1, 6, 10, 8), "float32")]
    >>> calibration = tvm_passes.quantize.calibrate(mod, images, tvm_passes.InInt8())
    >>> in_int8 = tvm_passes.InInt8(calibration)(mod)
    >>> for call in tvm_passes.engine.calls_of(in_int8, "topi_ext.conv2d_nhwc"):
    ...     scale = float(call.attrs["out_scale"])
    ...     print(call.args[0].checked_type, "to", call.checked_type.dtype, "by", scale)
    Tensor[(1, 6, 10, 8), float32] to int8 by 31.75
    Tensor[(1, 6, 10, 8), int8] to float32 by 1.0
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        if not isinstance(calibration, (Calibration, type(None))):
            raise TypeError(
                f"InInt8: calibration must be a Calibration, not {type(calibration).__name__}: of a file, "
                "give Calibration.read(file)"
            )
        super().__init__(partial(_in_int8, calibration=calibration))


def _in_int8(mod: tvm.IRModule, report: PassReport, calibration: Calibration | None) -> tvm.IRModule:
    if calibration is None:
        raise CalibrationError("InInt8 needs a calibration: make one by tvm_passes.quantize.calibrate")
    mod = relay.transform.InferType()(mod)
    graph = Graph(mod["main"])
    rewriting = _Rewriting(graph, _observed(convolutions_of(graph), calibration))
    for conv, reason in rewriting.why_not.items():
        if reason is None:
            report.rewrote(report.name, location(conv))
        else:
            report.refused(report.name, location(conv), reason)
    mod["main"] = graph.rebuilt(rewriting.replacements())
    return relay.transform.InferType()(mod)


def _observed(names: dict[relay.Call, str], calibration: Calibration) -> dict[relay.Call, Observed]:
    unknown = [conv for conv, name in names.items() if name not in calibration.convolutions]
    if unknown:
        first = unknown[0]
        shape = "x".join(map(str, first.args[1].checked_type.shape))
        place = f" at {location(first)}" if location(first) else ""
        raise CalibrationError(
            f"the calibration does not fit the network: it knows {len(names) - len(unknown)} of its "
            f"{len(names)} convolutions, and not that of filters {shape}{place}: calibrate again, with these "
            "weights and this pipeline"
        )
    return {conv: calibration.convolutions[name] for conv, name in names.items()}


def steps_in_int8(graph: Graph, observed: dict[relay.Call, Observed]) -> dict[relay.Expr, float]:
    """The step of each node that the pass keeps in int8."""
    return dict(_Rewriting(graph, observed).steps)


class _Rewriting:
    """Which convolutions to compute and which nodes to keep in int8, and what they become."""

    def __init__(self, graph: Graph, observed: dict[relay.Call, Observed]) -> None:
        self.graph, self.observed = graph, observed
        self.why_not = {conv: self._why_not(conv) for conv in observed}
        self.chosen = {conv for conv, reason in self.why_not.items() if reason is None}
        self.bounds: dict[relay.Expr, float] = {}
        for conv, found in observed.items():
            call = FusedCall(conv)
            known = [(call.data, found.data), (call.residual, found.residual), (conv, found.result)]
            for node, bound in known:
                if node is None or bound is None:
                    continue
                self.bounds[node] = max(bound, self.bounds.get(node, 0.0))
        self.kept: set[relay.Expr] = set()  # in int8
        self.samplers = {node for node in graph.nodes if _samples(node)}  # those that read int8
        self.too_coarse: set[relay.Expr] = set()  # those that are not kept, lest they share a step
        while not self._keep() or self._find_too_coarse():
            self.samplers = {node for node in self.samplers if self.kept.issuperset(_features(node))}
        self.int8: dict[relay.Expr, relay.Expr] = {}
        self._quantized: dict[tuple[relay.Expr, float], relay.Expr] = {}

    def replacements(self) -> dict[relay.Expr, relay.Expr]:
        """{node: its value in float32}, for convolutions, and for nodes in int8 that others read."""
        found: dict[relay.Expr, relay.Expr] = {}
        for node in self.graph.nodes:
            if node in self.kept:
                self.int8[node] = self._computed(node)
                if isinstance(node.checked_type, relay.TensorType):
                    found[node] = dequantized(self.int8[node], self.steps[node])
            elif node in self.chosen or node in self.samplers:
                found[node] = self._computed(node)
        return found

    # --- which

    def _why_not(self, conv: relay.Call) -> str | None:
        reason = why_not_int8(self.graph, conv)
        found = self.observed[conv]
        if reason is None and not found.data:
            return "stays in floating point: the calibration has no bound of its data"
        if reason is None and found.in_float:
            measured = "" if found.snr is None else f", at {found.snr:.1f} dB"
            return f"stays in floating point: the calibration says so{measured}"
        return reason

    def _keep(self) -> bool:
        """Find the nodes to keep in int8; whether the samplers get all of their features in it."""
        self.kept = set()
        for node in reversed(self.graph.nodes):  # a node after those that read it
            if node in self.too_coarse:
                continue
            if (node in self.observed or _samples(node) or _operands(node)) and self._serves_int8(node):
                self.kept.add(node)
        # One field of a split may serve convolutions where another does not.
        self.kept = {
            node
            for node in self.kept
            if not isinstance(node, relay.TupleGetItem) or node.tuple_value in self.kept
        }
        return all(self.kept.issuperset(_features(node)) for node in self.samplers)

    def _find_too_coarse(self) -> bool:
        """Find the steps, and the nodes for which they are too coarse; whether there are such.

        The bound of a part of a tensor may be much smaller than that of the whole, and a calibration measures
        what is lost by the step of what a convolution reads. What the part was taken from is not kept either:
        it would have been rounded by then. A part that is only read to be put together again may be.
        """
        self.steps = self._steps()
        found: set[relay.Expr] = set()
        for node in reversed(self.graph.nodes):
            if node in self.kept and (self._loses_steps(node) or node in found):
                found.add(node)
                found.update(self.kept.intersection(_operands(node)))
        self.too_coarse |= found
        return bool(found)

    def _loses_steps(self, node: relay.Expr) -> bool:
        """Whether anything but what is kept with the same step reads a node of a much smaller bound."""
        bound = self.bounds.get(node, 0.0)
        if not 0 < bound * MOST_STEPS_LOST < self.steps[node] * LEVELS:
            return False
        return any(reader in self.observed or reader not in self.kept for reader in self._readers(node))

    def _serves_int8(self, node: relay.Expr) -> bool:
        """Whether convolutions read int8, and TVM computes float32 of it in the kernels of its other readers.

        RoIAlign takes it, but alone is no reason to round.
        """
        readers = list(self._readers(node))
        in_int8 = [reader for reader in readers if self._reads_int8(reader, node)]
        samplers = [reader for reader in readers if reader in self.samplers and node in _features(reader)]
        return bool(in_int8) and all(
            reader in in_int8 or reader in samplers or is_injective(reader) for reader in readers
        )

    def _reads_int8(self, reader: relay.Expr, node: relay.Expr) -> bool:
        """Whether a convolution reads it in int8, at once or behind what is kept in int8."""
        if reader in self.observed:
            return reader in self.chosen and node in _read(reader) and self.bounds.get(node, 0.0) > 0
        return reader in self.kept and node in _operands(reader)

    def _readers(self, node: relay.Expr) -> Iterator[relay.Expr]:
        """The users of a node, with those of a tuple in place of the tuple."""
        for user in self.graph.users(node):
            inner = self.graph.users(user) if isinstance(user, relay.Tuple) else [user]
            yield from inner

    # --- what they become

    def _steps(self) -> dict[relay.Expr, float]:
        """The step of each node kept in int8: one for all between which elements are moved unchanged."""
        bounds = self.bounds
        beside: dict[relay.Expr, list[relay.Expr]] = {node: [] for node in self.kept}
        for node in self.kept:
            for operand in _operands(node):
                if operand in self.kept:
                    beside[node].append(operand)
                    beside[operand].append(node)
        steps: dict[relay.Expr, float] = {}
        for node in self.kept:
            if node in steps:
                continue
            group, waiting = {node}, [node]
            while waiting:
                new = [each for each in beside[waiting.pop()] if each not in group]
                group.update(new)
                waiting += new
            steps.update(dict.fromkeys(group, step_of(max(bounds.get(each, 0.0) for each in group))))
        return steps

    def _computed(self, node: relay.Expr) -> relay.Expr:
        """A node that reads or gives int8."""
        if node in self.observed:
            return self._convolution(node)
        return self._sampled(node) if _samples(node) else self._moved(node)

    def _convolution(self, conv: relay.Call) -> relay.Call:
        call = FusedCall(conv)
        if conv in self.chosen:
            weights, of_filters = quantized_weights(np.asarray(constant(call.weight)))
            step = self._step(call.data)
            call.data = self._in_int8(call.data, step)
            call.weight = relay.const(weights)
            call.scale = relay.const((of_filters * step).astype("float32"))
            if call.residual in self.kept:  # another one is added in float32
                call.residual_scale = self.steps[call.residual]
                call.residual = self.int8[call.residual]
            call.out_dtype = "float32"
        if conv in self.kept:
            call.out_dtype, call.out_scale = "int8", 1 / self.steps[conv]
        return call.call()

    def _sampled(self, node: relay.Call) -> relay.Call:
        """RoIAlign of features in int8, or with a result in int8, or both."""
        (given,) = node.args
        *features, regions = given.fields
        changed: dict[str, Any] = {"out_dtype": "float32"}
        if node in self.samplers:
            changed["feature_scales"] = [self.steps[feature] for feature in features]
            given = relay.Tuple([*(self.int8[feature] for feature in features), regions])
        if node in self.kept:
            changed |= {"out_dtype": "int8", "out_scale": 1 / self.steps[node]}
        attrs = tvm.ir.make_node("DictAttrs", **{**dict(node.attrs.items()), **changed})
        return relay.Call(node.op, [given], attrs, None, node.span)

    def _moved(self, node: relay.Expr) -> relay.Expr:
        """The same operator on int8."""
        if isinstance(node, relay.TupleGetItem):
            return relay.TupleGetItem(self.int8[node.tuple_value], node.index)
        operands = [self._in_int8(operand, self.steps[node]) for operand in _operands(node)]
        first = relay.Tuple(operands) if isinstance(node.args[0], relay.Tuple) else operands[0]
        return relay.Call(node.op, [first, *node.args[1:]], node.attrs, None, node.span)

    def _step(self, node: relay.Expr) -> float:
        return self.steps[node] if node in self.kept else step_of(self.bounds[node])

    def _in_int8(self, node: relay.Expr, step: float) -> relay.Expr:
        if node in self.kept:
            return self.int8[node]
        if (node, step) not in self._quantized:
            self._quantized[node, step] = quantized(node, step)
        return self._quantized[node, step]


def _read(conv: relay.Call) -> list[relay.Expr]:
    call = FusedCall(conv)
    return [each for each in (call.data, call.residual) if each is not None]


def _samples(node: relay.Expr) -> bool:
    """Whether it is a RoIAlign in float32, whose arguments are known one by one."""
    if op_name(node) != MULTISCALE_ROI_ALIGN or not isinstance(node.args[0], relay.Tuple):
        return False
    return all(map(is_float32, [node, *_features(node)]))


def _features(node: relay.Call) -> list[relay.Expr]:
    """The feature maps that a RoIAlign reads."""
    return list(node.args[0].fields)[:-1]


def _operands(node: relay.Expr) -> list[relay.Expr]:
    """What a node gives the same for in int8, with the same step; nothing if it does not."""
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value] if op_name(node.tuple_value) == "split" else []
    name = op_name(node)
    if name is None or not _works_on_int8(node):
        return []
    first = node.args[0]
    operands = list(first.fields) if isinstance(first, relay.Tuple) else [first]
    return operands if all(map(is_float32, operands)) else []


def _works_on_int8(node: relay.Call) -> bool:
    """Whether elements of int8 are moved, or the largest taken, as the numbers they stand for would be."""
    name, attrs = op_name(node), node.attrs
    if name in ("image.resize2d", "nn.upsampling"):
        is_cast = getattr(attrs, "out_dtype", "") not in ("", "float32")
        return str(attrs.method) == "nearest_neighbor" and not is_cast
    if name == "nn.pad":
        return str(attrs.pad_mode) == "constant" and scalar(node.args[1]) == 0
    return name in TAKE or known_of(node).elements in (SAME, MOVED)
