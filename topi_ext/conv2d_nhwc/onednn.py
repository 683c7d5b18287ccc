"""The convolution on CPUs by oneDNN, with bias, activations and residual in the same kernel.

Compiled code calls a packed function and passes the problem as text, as it does for cuDNN: so the code can be
saved, and it runs wherever `topi_ext` is imported and oneDNN is installed. The first call for a problem makes
its primitive; weights with an id are packed once, too. There is nothing for LLVM to compile.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Union

import numpy as np

import tvm

from .._kernel import bytes_of
from .._tvm import TVMError, address_of, shape_of, te, tir, topi
from ..onednn import library as onednn
from ..onednn.calls import Remembered, forget_all_of_thread, packed, remember
from . import silu_behind, winograd
from .bands import band_of, rows_of_a_band
from .problem import Activation, Problem, why_no_such_extents
from .samples import Samples

INSTALL = onednn.INSTALL
LIBRARY = onednn.NAME
PACKED_FUNCTION = "topi_ext.conv2d_nhwc.onednn"
MAX_KEPT = 4 << 30  # bytes of packed weights, and of images with their edges, that a thread keeps
MAX_PRIMITIVES = 4096
BAND = 1 << 20  # bytes of a result that is shuffled, for each thread
Key = tuple[str, tuple[int, ...]]  # the text of a problem, and the shape of the data


def is_available() -> bool:
    return onednn.library() is not None


def version() -> str | None:
    """The version of the library, or None where there is none."""
    return onednn.version()


@functools.cache
def multiplies(dtype: str) -> bool:
    """Whether oneDNN has convolutions of this type for this processor."""
    none = Activation("none", 0.0, 0.0)
    one = Problem(
        batch=1,
        size=(8, 8),
        channels=64,
        filters=64,
        kernel=(3, 3),
        strides=(1, 1),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
        dtype=dtype,
        out_dtype=dtype,
        activation=none,
        final_activation=none,
        block=1,
        bias=None,
        residual=None,
        slope=None,
    )
    return is_capable(one)


def is_capable(problem: Problem) -> bool:
    """Whether oneDNN computes the problem on this processor."""
    if problem.dtype not in ("float32", "bfloat16") or problem.is_quantized or not is_available():
        return False
    if problem.slope not in (None, "float32"):
        return False
    # It does not depend on extents that are known only at run time.
    size = (extent or reach for extent, reach in zip(problem.size, problem.reach))
    try:
        _Convolution(problem.of_shape(problem.batch or 1, *size), {})
    except onednn.NotImplementedByOneDNN:
        return False
    return True


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    _scale: te.Tensor | None,
    target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    inputs = [tensor for tensor in (data, weight, bias, residual, slope) if tensor is not None]
    has_silu = silu_behind.is_better(problem, target)

    def body(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.PrimExpr | tir.Stmt:
        return silu_behind.by_bands(problem, _call, ins, outs[0]) if has_silu else _call(problem, *ins, *outs)

    return te.extern(
        problem.shape_of_result(data.shape),
        inputs,
        body,
        dtype=problem.dtype,
        name="conv2d_nhwc",
        tag="conv2d_nhwc_onednn",
    )


def _call(problem: Problem, *tensors: tir.Buffer) -> tir.PrimExpr:
    return tir.call_packed(PACKED_FUNCTION, problem.to_json(), *tensors)


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return topi.generic.schedule_extern(outs)


def schedule_function(_problem: Problem, function: tir.PrimFunc) -> tir.PrimFunc:
    return function


# --- at run time


@packed(PACKED_FUNCTION)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: Any) -> None:
    shapes = [shape_of(tensor) for tensor in tensors[:2]]
    if shapes[0][0]:
        _of_thread.run(text, shapes, [address_of(tensor) for tensor in tensors])


class _OfThread(threading.local):
    """The primitives of a thread, each made once."""

    def __init__(self) -> None:
        forget_all_of_thread()
        self.convolutions: dict[Key, Convolution] = {}
        self._remembered: dict[Key, Remembered | None] = {}
        self.weights: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.workspace, self.band = Workspace(), Workspace()  # of a call, which later ones use again
        self.edges: weakref.WeakValueDictionary[Any, onednn.Buffer] = weakref.WeakValueDictionary()
        self.stream: onednn.Handle | None = None

    def run(self, text: str, shapes: Sequence[Sequence[int]], addresses: Sequence[int]) -> None:
        key = text, tuple(shapes[0])
        convolution = self.convolutions.get(key)
        if convolution is None:
            problem = Problem.from_json(text).of_shape(*shapes[0])
            convolution = self.convolutions[key] = self._made(problem)
            self._drop_oldest()
        self.stream = self.stream or onednn.stream()
        convolution.run(self.stream, addresses)
        self._remembered[key] = convolution.remembered(text, shapes, self.stream)

    def _made(self, problem: Problem) -> Convolution:
        onednn.check_installed("topi_ext.conv2d_nhwc")
        reason = why_no_such_extents(problem) if problem.has_known_size else "no extent may be 0"
        if reason is not None:
            raise TVMError(f"topi_ext.conv2d_nhwc: {reason}: data of {problem.batch, *problem.size}")
        if problem.block > 1:
            return _InBands(problem, self._made, self.band)
        if winograd.is_better(problem):
            return winograd.Convolution(problem, self.weights, self.workspace.address)
        try:
            convolution = _Convolution(problem, self.weights)
            return _with_edges(problem, convolution, self.weights, self.edges)
        except onednn.NotImplementedByOneDNN as reason:
            raise TVMError(
                f"topi_ext.conv2d_nhwc: oneDNN {onednn.version()} has no kernel for {problem} on this "
                f"processor: compile on it, or for a target without -libs={LIBRARY}"
            ) from reason

    def _drop_oldest(self) -> None:
        """Where batches or images come in many sizes, each has primitives, which share the weights."""
        while len(self.convolutions) > 1 and (
            len(self.convolutions) > MAX_PRIMITIVES or sum(buffer.size for buffer in self._kept()) > MAX_KEPT
        ):
            oldest = next(iter(self.convolutions))
            del self.convolutions[oldest]
            self._remembered.pop(oldest, None)

    def _kept(self) -> list[onednn.Buffer]:
        weights = {convolution.weights for convolution in self.convolutions.values()}
        return [*(each.packed for each in weights), *self.edges.values()]


class Workspace:
    """Memory that grows with what is asked for."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, "uint8")

    def address(self, size: int) -> int:
        if self._bytes.size < size + onednn.ALIGNMENT:
            self._bytes = np.zeros(size + onednn.ALIGNMENT, "uint8")
        address = self._bytes.ctypes.data
        return address + -address % onednn.ALIGNMENT


_of_thread = _OfThread()


class _InBands:
    """A convolution and depth to space, which oneDNN does not do: it moves the elements of a few rows.

    They are still in the cache, where those of a whole image would be written to memory and read again.
    """

    def __init__(
        self, problem: Problem, made: Callable[[Problem], Convolution], workspace: Workspace
    ) -> None:
        self._workspace = workspace
        numbers = bytes_of(problem.dtype)
        height, width = problem.out_size
        row = numbers * width * problem.filters
        of_data = numbers * problem.size[1] * problem.channels
        rows = rows_of_a_band(problem, row, BAND * tvm.runtime.num_threads(), winograd.SIDE)
        self._band_size = rows * row
        convolutions: dict[Problem, Convolution] = {}
        moves: dict[int, _Move] = {}
        self._bands = []
        for image, begin in itertools.product(range(problem.batch), range(0, height, rows)):
            count = min(rows, height - begin)
            band, first = band_of(problem, begin, count)
            if band not in convolutions:
                convolutions[band] = made(band)
            if count not in moves:
                moves[count] = _Move(problem, count)
            offset = (image * problem.size[0] + first) * of_data
            self._bands.append((convolutions[band], moves[count], offset))
        self.weights: Any = self._bands[0][0].weights

    def run(self, stream: onednn.Handle, addresses: Sequence[int]) -> None:
        data, *others, result = addresses  # a shuffle has no residual
        band = self._workspace.address(self._band_size)
        for convolution, move, offset in self._bands:
            convolution.run(stream, [data + offset, *others, band])
            move.run(stream, band, result)
            result += move.size

    def remembered(self, *_: Any) -> None:
        """Bands take long enough to be called from Python."""


class _Move:
    """Depth to space of so many rows."""

    def __init__(self, problem: Problem, rows: int) -> None:
        block, (_, width) = problem.block, problem.out_size
        channels = problem.filters // block**2
        shape = rows, width, block, block, channels
        deep = width * problem.filters, problem.filters, block * channels, channels, 1
        flat = width * problem.filters, block * channels, width * block * channels, channels, 1
        layouts = [onednn.layout(shape, problem.dtype, strides) for strides in (deep, flat)]
        self._memories = [onednn.memory(layout, 0) for layout in layouts]
        arguments = dict(zip((onednn.SOURCE, onednn.RESULT), self._memories))
        self._execution = onednn.Execution(onednn.reorder(*layouts), arguments)
        self.size = bytes_of(problem.dtype) * math.prod(shape)

    def run(self, stream: onednn.Handle, *addresses: int) -> None:
        for memory, address in zip(self._memories, addresses):
            onednn.move(memory, address)
        self._execution.run(stream)


class _Convolution:
    """The primitive of a problem, memory for its arguments, and its packed weights."""

    def __init__(self, problem: Problem, weights: MutableMapping[str, _Weights]) -> None:
        layouts = (_Rows if problem.is_product else _Images)(problem)
        arguments = [(onednn.SOURCE, layouts.data)]  # in the order of the operator's, without weights
        bias = None
        if problem.bias:
            bias = layouts.of_filters(problem.bias, rank=layouts.rank_of_bias)
            arguments.append((onednn.BIAS, bias))
        post_ops, slope = onednn.PostOps(), None
        if problem.activation.name == "prelu":
            slope = post_ops.prelu_of_channels(), layouts.of_filters("float32", rank=layouts.rank)
        else:
            _activate(post_ops, problem.activation)
        if problem.residual:
            arguments.append((post_ops.add(layouts.result), layouts.result))
        _activate(post_ops, problem.final_activation)
        if slope:
            arguments.append(slope)
        arguments.append((onednn.RESULT, layouts.result))
        primitive = layouts.primitive(bias, post_ops)
        self.is_for_depthwise = primitive.is_for_depthwise
        self.weights: Any = _packed_once(problem, layouts.given, primitive.weights, weights)
        self._memories = [onednn.memory(layout, 0) for _, layout in arguments]
        memories = {index: memory for (index, _), memory in zip(arguments, self._memories)}
        memories[onednn.WEIGHTS] = self.weights.packed.memory
        self._execution = onednn.Execution(primitive, memories)

    def run(self, stream: onednn.Handle, addresses: Sequence[int]) -> None:
        data, weight, *others = addresses
        self.weights.pack(stream, weight)
        for memory, address in zip(self._memories, (data, *others)):
            onednn.move(memory, address)
        self._execution.run(stream)

    def remembered(
        self, text: str, shapes: Sequence[Sequence[int]], stream: onednn.Handle
    ) -> Remembered | None:
        """What makes this call without Python, unless weights are packed in each."""
        if not self.weights.are_kept:
            return None
        numbers = 0, *range(2, 1 + len(self._memories))  # the weights are between the data and the others
        moves = [*zip(numbers, self._memories)]
        return remember(text, shapes, self._execution, stream, moves, weights=(1, self.weights.samples))


class _WithEdges:
    """A convolution without padding, of images that are copied to where the zeros around them are."""

    def __init__(
        self, problem: Problem, convolution: _Convolution, edges: MutableMapping[Any, onednn.Buffer]
    ) -> None:
        self._convolution, self.weights = convolution, convolution.weights
        top, left, bottom, right = problem.padding
        (height, width), channels = problem.size, problem.channels
        images = problem.batch, height, width, channels
        whole = problem.batch, height + top + bottom, width + left + right, channels
        # Of zeros, of which no call changes those around the images: convolutions of the same kind share it.
        key = problem.dtype, problem.padding, images
        self._whole = edges.get(key) or onednn.Buffer(onednn.layout(whole, problem.dtype, _steps(whole)))
        edges[key] = self._whole
        source = onednn.layout(images, problem.dtype, _steps(images))
        result = onednn.layout(images, problem.dtype, _steps(whole))
        first = bytes_of(problem.dtype) * channels * (top * whole[2] + left)
        self._data, self._inner = onednn.memory(source, 0), onednn.memory(result, self._whole.address + first)
        arguments = {onednn.SOURCE: self._data, onednn.RESULT: self._inner}
        self._copy = onednn.Execution(onednn.reorder(source, result), arguments)

    def run(self, stream: onednn.Handle, addresses: Sequence[int]) -> None:
        data, *others = addresses
        onednn.move(self._data, data)
        self._copy.run(stream)
        self._convolution.run(stream, [self._whole.address, *others])

    def remembered(self, *_: Any) -> None:
        """The copy is called from Python."""


def _steps(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor whose elements are in order."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _with_edges(
    problem: Problem,
    convolution: _Convolution,
    weights: MutableMapping[str, _Weights],
    edges: MutableMapping[Any, onednn.Buffer],
) -> _Convolution | _WithEdges:
    """The same convolution, by way of a copy where only then oneDNN has a kernel for depthwise ones.

    Its kernels for them take no padding as wide as dilated windows often have; what it takes instead for such
    a convolution is seven times as slow.
    """
    if not problem.is_depthwise or convolution.is_for_depthwise or not any(problem.padding):
        return convolution
    top, left, bottom, right = problem.padding
    height, width = problem.size
    whole = replace(problem, size=(height + top + bottom, width + left + right), padding=(0, 0, 0, 0))
    of_whole = _Convolution(whole, weights)
    return _WithEdges(problem, of_whole, edges) if of_whole.is_for_depthwise else convolution


class _Images:
    """The layouts of a convolution's tensors. oneDNN wants extents in the order NCHW."""

    rank, rank_of_bias = 4, 1

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.data = self._of_images(problem.size, problem.channels)
        self.result = self._of_images(problem.out_size, problem.filters)
        rows, columns = problem.kernel
        channels = problem.channels_of_group
        shape = [problem.filters, channels, rows, columns]
        strides = [rows * columns * channels, 1, columns * channels, channels]
        if problem.groups > 1:
            shape[:1] = problem.groups, problem.filters // problem.groups
            strides.insert(0, strides[0] * shape[1])
        self.given = onednn.layout(shape, problem.dtype, strides)  # of the weights
        self._best = onednn.layout(shape, problem.dtype)

    def _of_images(self, size: Sequence[int], channels: int) -> onednn.Handle:
        height, width = size
        strides = height * width * channels, 1, width * channels, channels
        return onednn.layout((self.problem.batch, channels, height, width), self.problem.dtype, strides)

    def of_filters(self, dtype: str, rank: int) -> onednn.Handle:
        """Of a number for each filter."""
        return _vector(self.problem.filters, dtype, rank, axis=min(rank - 1, 1))

    def primitive(self, bias: onednn.Handle | None, post_ops: onednn.PostOps) -> onednn.Primitive:
        problem = self.problem
        sides = problem.padding[:2], problem.padding[2:]
        steps = problem.strides, problem.dilation, sides
        return onednn.convolution(self.data, self._best, bias, self.result, *steps, post_ops)


class _Rows:
    """The same where each filter sees a whole image: a product of matrices, which is faster."""

    rank = rank_of_bias = 2

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        length = math.prod(problem.size) * problem.channels
        self.data = onednn.layout((problem.batch, length), problem.dtype, (length, 1))
        self.result = onednn.layout((problem.batch, problem.filters), problem.dtype, (problem.filters, 1))
        self.given = onednn.layout((length, problem.filters), problem.dtype, (1, length))
        self._weights = length, problem.filters

    def of_filters(self, dtype: str, rank: int) -> onednn.Handle:
        return _vector(self.problem.filters, dtype, rank, axis=1)

    def primitive(self, bias: onednn.Handle | None, post_ops: onednn.PostOps) -> onednn.Primitive:
        return onednn.product(self.data, self._weights, self.problem.dtype, bias, self.result, post_ops)


def _vector(length: int, dtype: str, rank: int, axis: int) -> onednn.Handle:
    shape, strides = [1] * rank, [1] * rank
    shape[axis] = length
    strides[:axis] = [length] * axis
    return onednn.layout(shape, dtype, strides)


def _packed_once(
    problem: Problem, given: onednn.Handle, chosen: onednn.Handle, known: MutableMapping[str, _Weights]
) -> _Weights:
    """The weights in the chosen layout; those with an id are packed for all batches at once."""
    same = known.get(problem.weight_id)
    if same is not None and onednn.is_same(same.layout, chosen) and onednn.is_same(same.given, given):
        return same
    weights = _Weights(problem, given, chosen)
    if problem.weight_id:
        known[problem.weight_id] = weights
    return weights


class _Weights:
    """The weights of a convolution in oneDNN's layout: packed once if they have an id, else in each call."""

    def __init__(self, problem: Problem, given: onednn.Handle, chosen: onednn.Handle) -> None:
        self.packed = onednn.Buffer(chosen)
        self.are_kept = bool(problem.weight_id)
        self.given, self.layout = given, chosen
        self._source = onednn.memory(given, 0)
        arguments = {onednn.SOURCE: self._source, onednn.RESULT: self.packed.memory}
        self._packing = onednn.Execution(onednn.reorder(given, chosen), arguments)
        count = problem.filters * problem.channels_of_group * math.prod(problem.kernel)
        self.samples = Samples(count * (4 if problem.dtype == "float32" else 2))

    def pack(self, stream: onednn.Handle, address: int) -> None:
        if not self.are_kept or self.samples.are_new(address):
            onednn.move(self._source, address)
            self._packing.run(stream)


def _activate(post_ops: onednn.PostOps, activation: Activation) -> None:
    constants = {"silu": (1.0, 0.0), "hard_swish": (1 / 6, 0.5)}  # of oneDNN's more general functions
    given = constants.get(activation.name, (activation.low, activation.high))
    if activation.name != "none":
        post_ops.elementwise(activation.name, *given)


Convolution = Union[_Convolution, _WithEdges, winograd.Convolution, _InBands]
