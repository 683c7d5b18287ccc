"""DFT and STFT."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant
from ._common import Attrs, Converter, Inputs, Params, axis_of, dtype_of, known, opset_of, rank_of, sizes_of


def dft(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own swaps the axis with that of real and imaginary parts, and takes no axis as an input."""
    data, rank = inputs[0], rank_of(inputs[0])
    if opset_of(importer) < 20:
        axis = attrs.get("axis", 1)
    else:
        axis = known(inputs[2], "axis")
        axis = -2 if axis is None else int(axis.item())
    axis = axis_of(axis, rank)
    length = known(inputs[1], "length")
    count = sizes_of(data)[axis] if length is None else int(length.item())
    if count is None:
        raise NotImplementedError("it needs a size that is known")
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    if inverse and onesided:
        raise NotImplementedError("versions of ONNX disagree on what onesided=1 with inverse=1 gives")
    return _transformed(data, axis, count, inverse, onesided)


def _transformed(data: relay.Expr, axis: int, count: int, inverse: bool, onesided: bool) -> relay.Expr:
    """The Fourier transform along an axis, as a product of matrices."""
    rank, size = rank_of(data), sizes_of(data)[axis]
    if size is None:
        raise NotImplementedError("it needs a size that is known")
    wanted = count // 2 + 1 if onesided else count
    used = min(size, count)  # what is missing counts as zero
    turns = np.outer(np.arange(wanted), np.arange(used)) / count
    wave = np.exp((2j if inverse else -2j) * np.pi * turns) / (count if inverse else 1)
    # (output, its part, input, its part): the parts are the real and the imaginary one
    matrix = np.array([[wave.real, -wave.imag], [wave.imag, wave.real]]).transpose(2, 0, 3, 1)
    parts = 1 if sizes_of(data)[-1] == 1 else 2
    matrix = matrix[..., :parts].reshape(2 * wanted, used * parts).astype(dtype_of(data))

    others = [place for place in range(rank - 1) if place != axis]
    data = relay.strided_slice(data, [0], [used], axes=[axis]) if used < size else data
    moved = relay.transpose(data, [*others, axis, rank - 1])
    kept = [sizes_of(data)[place] for place in others]
    if None in kept[1:]:
        raise NotImplementedError("it needs sizes that are known")
    result = relay.nn.dense(relay.reshape(moved, [-1, used * parts]), constant(matrix))
    result = relay.reshape(result, [-1, *kept[1:], wanted, 2] if kept else [wanted, 2])
    return relay.transpose(result, [int(place) for place in np.argsort([*others, axis, rank - 1])])


def stft(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM has none: the Fourier transform of each window of a signal."""
    data, window = inputs[0], inputs[2]
    step, count = known(inputs[1], "frame_step"), known(inputs[3], "frame_length")
    size, of_window = sizes_of(data)[1], None if window is None else sizes_of(window)[0]
    length = of_window if count is None else int(count.item())
    if size is None or length is None or step is None:
        raise NotImplementedError("it needs to know the lengths of the signal and of its windows")
    if window is not None and of_window != length:
        raise NotImplementedError("its window is not as long as frame_length says")
    places = np.arange(0, size - length + 1, int(step.item()))[:, None] + np.arange(length)
    frames = relay.take(data, constant(places.astype("int32")), 1, mode="fast")
    if window is not None:
        frames = frames * relay.expand_dims(window, 1)
    return _transformed(frames, 2, length, False, bool(attrs.get("onesided", 1)))


CONVERTERS: dict[str, Converter] = {"DFT": dft, "STFT": stft}
