"""RNN, LSTM and GRU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tvm import relay

from ..._fold import constant
from ._common import Attrs, Converter, Inputs, Params, all_sizes_of, like, several, sizes_of, stock


def _recurrent(name: str) -> Converter:
    def convert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
        """TVM's own ignores the direction "reverse" and sequence lengths, and fails if the batch is first."""
        given: list[Any] = list(inputs) + [None] * (8 - len(inputs))
        direction = attrs.get("direction", b"forward").decode().lower()
        attrs.get("hidden_size")  # the weights say the same
        batch_first = bool(attrs.pop("layout", 0))
        if batch_first:
            for place in (0, 5, 6):  # the sequences and the initial states
                if given[place] is not None:
                    given[place] = relay.transpose(given[place], [1, 0, 2])
        lengths, given[4] = given[4], None
        longest = sizes_of(given[0])[0]
        if _are_all(lengths, longest):
            lengths = None
        if lengths is not None and (direction != "forward" or attrs["tvm_custom"]["num_outputs"] > 2):
            raise NotImplementedError("its input 4, the sequence lengths, needs the direction forward")
        if direction == "reverse":
            given[0] = relay.reverse(given[0], 0)
        while given[-1] is None:
            given.pop()
        result = stock(importer, name)(importer.onnx_input.of(given), attrs, params)
        outputs = [result[place] for place in range(len(result))]
        if direction == "reverse":
            outputs[0] = relay.reverse(outputs[0], 0)
        if lengths is not None:
            longest = all_sizes_of(given[0], "its input 4, the sequence lengths,")[0]
            outputs[:2] = _cut(outputs[0], lengths, longest)
        if batch_first:
            outputs[0] = relay.transpose(outputs[0], [2, 0, 1, 3])
            outputs[1:] = [relay.transpose(state, [1, 0, 2]) for state in outputs[1:]]
        return several(*outputs)

    return convert


def _are_all(lengths: relay.Expr | None, longest: int | None) -> bool:
    return isinstance(lengths, relay.Constant) and bool(np.all(lengths.data.numpy() == longest))


def _cut(sequence: relay.Expr, lengths: relay.Expr, longest: int) -> list[relay.Expr]:
    """The results of each sequence, zero past its end, and its last result."""
    steps = constant(np.arange(longest, dtype="int32").reshape(-1, 1, 1, 1))
    lengths = relay.reshape(relay.cast(lengths, "int32"), [1, 1, -1, 1])
    zero = like(0, sequence)
    last = relay.where(relay.equal(steps, lengths - relay.const(1)), sequence, zero)
    return [relay.where(steps < lengths, sequence, zero), relay.sum(last, 0)]


CONVERTERS: dict[str, Converter] = {name: _recurrent(name) for name in ("GRU", "LSTM", "RNN")}
