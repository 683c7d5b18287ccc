"""RNN, LSTM and GRU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tvm_passes.engine.expressions import type_of

from tvm import relay
from tvm.relay.loops import while_loop

from ..._fold import constant, keep_known
from ._common import Attrs, Converter, Inputs, Params, all_sizes_of, dtype_of, like, several, sizes_of, stock

SEQUENCE, LENGTHS, FIRST_STATE, PEEPHOLES = 0, 4, 5, 7  # among the inputs
WITHOUT_DEFAULTS = {"Affine", "ScaledTanh"}  # activations with parameters that are no operators of ONNX
Unrolled = Callable[[list[Any]], list[relay.Expr]]


def _recurrent(name: str) -> Converter:
    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own ignores the direction "reverse" and sequence lengths, and fails if the batch is first or
        if the length is known only at run time."""
        given: list[Any] = list(inputs) + [None] * (8 - len(inputs))
        direction = attrs.get("direction", b"forward").decode().lower()
        attrs.get("hidden_size")  # the weights say the same
        batch_first = bool(attrs.pop("layout", 0))
        if batch_first:
            for place in (0, 5, 6):  # the sequences and the initial states
                if given[place] is not None:
                    given[place] = relay.transpose(given[place], [1, 0, 2])
        lengths, given[LENGTHS] = given[LENGTHS], None
        longest, batch, _ = sizes_of(given[SEQUENCE])
        if batch is None and name == "GRU":
            raise NotImplementedError("the size of its batch must be known")
        if _are_all(lengths, longest):
            lengths = None
        if lengths is not None and direction != "forward":
            raise NotImplementedError("its input 4, the sequence lengths, needs the direction forward")
        if lengths is not None and attrs["tvm_custom"]["num_outputs"] > 2:
            raise NotImplementedError("its output 2, the last cell, is not supported with sequence lengths")
        names = {each.decode() for each in attrs.get("activations", [])}
        if names & WITHOUT_DEFAULTS and not all(
            attrs.get(f"activation_{each}") for each in ("alpha", "beta")
        ):
            raise NotImplementedError("ONNX has no alpha and beta for its activations, and it has none")
        if direction == "reverse":
            given[SEQUENCE] = relay.reverse(given[SEQUENCE], 0)

        def unrolled(given: list[Any]) -> list[relay.Expr]:
            while given[-1] is None:
                given = given[:-1]
            result = stock(importer, name)(importer.onnx_input.of(given), attrs, params)
            return [result[place] for place in range(len(result))]

        if longest is None:
            count = 2 if name == "LSTM" else 1
            outputs = _of_any_length(unrolled, given, attrs, count, importer.fold_constant)
        else:
            outputs = unrolled(given)
        if direction == "reverse":
            outputs[0] = relay.reverse(outputs[0], 0)
        if lengths is not None:
            longest = all_sizes_of(given[SEQUENCE], "its input 4, the sequence lengths,")[0]
            outputs[:2] = _cut(outputs[0], lengths, longest)
        if batch_first:
            outputs[0] = relay.transpose(outputs[0], [2, 0, 1, 3])
            outputs[1:] = [relay.transpose(state, [1, 0, 2]) for state in outputs[1:]]
        return several(*outputs)

    return convert


def _of_any_length(
    unrolled: Unrolled, given: list[Any], attrs: Attrs, states: int, fold: Callable[[relay.Expr], relay.Expr]
) -> list[relay.Expr]:
    """A loop for each direction, over a sequence whose length is known only at run time."""
    directions, _, hidden = all_sizes_of(given[2])
    activations = np.array(attrs.get("activations", []))
    if directions > 1 and (attrs.get("activation_alpha") or attrs.get("activation_beta")):
        raise NotImplementedError("parameters of its activations need a sequence of known length")
    for place in range(FIRST_STATE, FIRST_STATE + states):
        if given[place] is None:
            given[place] = _zeros(given[SEQUENCE], (directions,), hidden)
    results = []
    for direction, names in enumerate(np.split(activations, directions)):
        if len(names):
            attrs["activations"] = names.tolist()
        parts = [None if each is None else fold(relay.split(each, directions)[direction]) for each in given]
        parts[SEQUENCE] = relay.reverse(given[SEQUENCE], 0) if direction else given[SEQUENCE]
        sequence, *last = _loop(unrolled, parts, states, hidden)
        results.append([relay.reverse(sequence, 0) if direction else sequence, *last])
    return [relay.concatenate(each, axis) for each, axis in zip(zip(*results), (1, 0, 0))]


def _loop(unrolled: Unrolled, given: list[Any], states: int, hidden: int) -> list[relay.Expr]:
    """The loop of one direction, whose body is what `unrolled` makes of a sequence of one item.

    It carries what it reads from outside: Relay would compute that again in each iteration.
    """
    first = given[FIRST_STATE : FIRST_STATE + states]
    others = [*range(1, FIRST_STATE), PEEPHOLES]
    free = (type(None), relay.Constant, relay.Var)
    outside = [SEQUENCE, *(place for place in others if not isinstance(given[place], free))]
    step = relay.var("step", shape=(), dtype="int64")
    rows = relay.var("rows", shape=(relay.Any(), *type_of(first[0]).shape), dtype=dtype_of(first[0]))
    carried = [relay.var("carried", type_of(each)) for each in [*first, *(given[each] for each in outside)]]

    def goes_on(step: relay.Expr, rows: relay.Expr, *carried: relay.Expr) -> relay.Expr:
        length = relay.take(relay.shape_of(carried[states], "int64"), relay.const(0, "int64"))
        return relay.less(step, length)

    def body(step: relay.Expr, rows: relay.Expr, *carried: relay.Expr) -> list[relay.Expr]:
        now = list(given)
        now[FIRST_STATE : FIRST_STATE + states] = carried[:states]
        for place, each in zip(outside, carried[states:]):
            now[place] = each
        now[SEQUENCE] = relay.take(now[SEQUENCE], relay.reshape(step, [1]), 0)
        _, *new = unrolled(now)
        new = [keep_known(after, sizes_of(before)) for before, after in zip(first, new)]
        rows = relay.concatenate([rows, relay.expand_dims(new[0], 0)], 0)
        return [step + relay.const(1, "int64"), rows, *new, *carried[states:]]

    loop = while_loop(goes_on, [step, rows, *carried], body)
    none = _zeros(given[SEQUENCE], (0, 1), hidden)
    result = loop(relay.const(0, "int64"), none, *first, *(given[place] for place in outside))
    return [relay.TupleGetItem(result, place) for place in range(1, 2 + states)]


def _zeros(data: relay.Expr, front: tuple[int, ...], hidden: int) -> relay.Expr:
    """Zeros for each item of the batch, which is the second axis of the data."""
    batch = sizes_of(data)[1]
    if batch is not None:
        return constant(np.zeros((*front, batch, hidden), dtype_of(data)))
    sizes = [constant(np.array(each, "int64")) for each in (front, [hidden])]
    shape = relay.concatenate(
        [sizes[0], relay.strided_slice(relay.shape_of(data, "int64"), [1], [2]), sizes[1]], 0
    )
    return keep_known(relay.zeros(shape, dtype_of(data)), [*front, None, hidden])


def _are_all(lengths: relay.Expr | None, longest: int | None) -> bool:
    return isinstance(lengths, relay.Constant) and bool(np.all(lengths.data.numpy() == longest))


def _cut(sequence: relay.Expr, lengths: relay.Expr, longest: int) -> list[relay.Expr]:
    """The results of each sequence, zero past its end, and its last result."""
    steps = constant(np.arange(longest, dtype="int32").reshape(-1, 1, 1, 1))
    lengths = relay.reshape(relay.cast(lengths, "int32"), [1, 1, -1, 1])
    zero = like(0, sequence)
    last = relay.where(relay.equal(steps, lengths - relay.const(1)), sequence, zero)
    return [relay.where(steps < lengths, sequence, zero), relay.sum(last, 0)]


def dynamic_quantize_lstm(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none. An LSTM in floats is closer to what was quantized: ONNX Runtime rounds the input and the
    state of each step to 8 bits."""
    given = [inputs[place] for place in range(8)]
    for place, at in ((1, 8), (2, 10)):  # of the input and of the state: (direction, length, gates)
        scale, zero_point = _for_gates(inputs[at]), _for_gates(inputs[at + 1])
        weights = relay.cast(given[place], "float32")
        weights = weights if zero_point is None else weights - zero_point
        given[place] = importer.fold_constant(relay.transpose(weights * scale, [0, 2, 1]))
    return CONVERTERS["LSTM"](importer, importer.onnx_input.of(given), attrs, params)


def _for_gates(numbers: relay.Expr | None) -> relay.Expr | None:
    """Scales or zero points, one for each direction or for each of its gates, so that they broadcast."""
    if numbers is None:
        return None
    return relay.reshape(relay.cast(numbers, "float32"), [sizes_of(numbers)[0], 1, -1])


CONVERTERS: dict[str, Converter] = {name: _recurrent(name) for name in ("GRU", "LSTM", "RNN")}
CONVERTERS["DynamicQuantizeLSTM"] = dynamic_quantize_lstm
