"""Sequences, which are tuples of a length that is known at import."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ._common import Attrs, Converter, Inputs, Params, all_sizes_of, axis_of, known, rank_of
from .shapes import split_into


def empty(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own does not read the type, which the tensors have by themselves."""
    attrs.get("dtype")
    return relay.Tuple([])


def at(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own gives no reason where the position is known only at run time."""
    sequence, position = inputs[0], inputs[1]
    if not isinstance(position, relay.Constant):
        what = "which element it takes is known only at run time"
        raise NotImplementedError(f"{what}: stack the tensors, and take from the result by an index")
    return sequence[int(position.data.numpy().item())]


def insert(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own inserts at a negative position behind the element that ONNX has it in front of."""
    sequence, tensor, position = inputs[0], inputs[1], known(inputs[2], "position")
    tensors = [sequence[place] for place in range(len(sequence))]
    tensors.insert(len(tensors) if position is None else int(position.item()), tensor)
    return relay.Tuple(tensors)


def split_to_sequence(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own takes no lengths, and no shorter last part."""
    data, lengths = inputs[0], known(inputs[1], "split")
    axis = axis_of(attrs.get("axis", 0), rank_of(data))
    keeps_axis = bool(attrs.get("keepdims", 1)) or lengths is not None
    size = all_sizes_of(data)[axis]
    if lengths is None or lengths.ndim == 0:
        each = 1 if lengths is None else int(lengths)
        ends = [*range(each, size, each), size]
        lengths = np.diff([0, *ends])
    parts = split_into(data, lengths.tolist(), axis)
    return relay.Tuple(parts if keeps_axis else [relay.squeeze(part, [axis]) for part in parts])


CONVERTERS: dict[str, Converter] = {
    "SequenceAt": at,
    "SequenceEmpty": empty,
    "SequenceInsert": insert,
    "SplitToSequence": split_to_sequence,
}
