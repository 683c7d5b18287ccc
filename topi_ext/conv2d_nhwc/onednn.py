"""The convolution on CPUs by oneDNN, with bias, activations and residual in the same kernel.

Compiled code calls a packed function and passes the problem as text, as it does for cuDNN: so the code can be
saved, and it runs wherever `topi_ext` is imported and oneDNN is installed. The first call for a problem makes
its primitive; weights with an id are packed once, too. There is nothing for LLVM to compile.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

import tvm
from tvm import te, tir, topi

from .. import _onednn as onednn
from .._address import address_of
from .problem import Activation, Problem

INSTALL = onednn.INSTALL
LIBRARY = "onednn"  # in the target: `llvm -libs=onednn`
PACKED_FUNCTION = "topi_ext.conv2d_nhwc.onednn"
MAX_PACKED = 4 << 30  # bytes of packed weights that a thread keeps
SAMPLES = 64  # of the bytes of weights, which tell other weights with the same id


def is_available() -> bool:
    return onednn.library() is not None


def version() -> str | None:
    """The version of the library, or None where there is none."""
    return onednn.version()


def is_capable(problem: Problem) -> bool:
    """Whether oneDNN computes the problem on this processor."""
    if problem.dtype not in ("float32", "bfloat16") or not is_available():
        return False
    if problem.slope not in (None, "float32"):
        return False
    try:
        _Convolution(problem)
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
    _target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`. The shuffle, which oneDNN does not do, is a copy behind its kernel."""
    inputs = [tensor for tensor in (data, weight, bias, residual, slope) if tensor is not None]
    deep = te.extern(
        (problem.batch, *problem.out_size, problem.filters),
        inputs,
        lambda ins, outs: tir.call_packed(PACKED_FUNCTION, problem.to_json(), *ins, *outs),
        dtype=problem.dtype,
        name="conv2d_nhwc",
        tag="conv2d_nhwc_onednn",
    )
    block, channels = problem.block, problem.shape[-1]
    if block == 1:
        return deep
    return te.compute(
        problem.shape,
        lambda n, y, x, c: deep[n, y // block, x // block, (y % block * block + x % block) * channels + c],
        name="shuffled",
        tag="conv2d_nhwc_shuffled",
    )


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    (result,) = outs
    if isinstance(result.op, te.ExternOp):
        return topi.generic.schedule_extern(outs)
    s = te.create_schedule([result.op])
    *outer, lanes = s[result].op.axis
    s[result].parallel(s[result].fuse(*outer[:-1]))
    s[result].vectorize(s[result].split(lanes, 16)[1] if int(result.shape[-1]) % 16 == 0 else lanes)
    return s


# --- at run time


@tvm.register_func(PACKED_FUNCTION, override=True)  # TVM keeps the function if this module is imported again
def _run(text: str, *tensors: tvm.nd.NDArray) -> None:
    _of_thread.run(text, [address_of(tensor) for tensor in tensors])


class _OfThread(threading.local):
    """The primitives of a thread, each made once, those used last at the end."""

    def __init__(self) -> None:
        self.convolutions: OrderedDict[str, _Convolution] = OrderedDict()
        self.stream: onednn.Handle | None = None
        self.packed = 0  # bytes

    def run(self, text: str, addresses: Sequence[int]) -> None:
        convolution = self.convolutions.get(text)
        if convolution is None:
            convolution = self._made(text)
        else:
            self.convolutions.move_to_end(text)
        self.stream = self.stream or onednn.stream()
        convolution.run(self.stream, addresses)

    def _made(self, text: str) -> _Convolution:
        problem = Problem.from_json(text)
        if not is_available():
            raise tvm.TVMError(
                f"topi_ext.conv2d_nhwc: the target had -libs={LIBRARY}, and oneDNN is missing here: "
                f"{INSTALL}, or compile for a target without it"
            )
        try:
            convolution = _Convolution(problem)
        except onednn.NotImplementedByOneDNN as reason:
            raise tvm.TVMError(
                f"topi_ext.conv2d_nhwc: oneDNN {onednn.version()} has no kernel for {problem} on this "
                f"processor: compile on it, or for a target without -libs={LIBRARY}"
            ) from reason
        self.convolutions[text] = convolution
        self.packed += convolution.weights.packed.size
        while self.packed > MAX_PACKED and len(self.convolutions) > 1:
            _, oldest = self.convolutions.popitem(last=False)
            self.packed -= oldest.weights.packed.size
        return convolution


_of_thread = _OfThread()


class _Convolution:
    """The primitive of a problem, memory for its arguments, and its packed weights."""

    def __init__(self, problem: Problem) -> None:
        images = _layout(problem, problem.size, problem.channels)
        result = _layout(problem, problem.out_size, problem.filters)
        chosen, given = _weight_layouts(problem)
        arguments = [(onednn.SOURCE, images)]  # in the order of the operator's, without weights
        bias = None
        if problem.bias:
            bias = onednn.layout((problem.filters,), problem.bias, (1,))
            arguments.append((onednn.BIAS, bias))
        post_ops, slope = onednn.PostOps(), None
        if problem.activation.name == "prelu":
            slopes = onednn.layout((1, problem.filters, 1, 1), "float32", (problem.filters, 1, 1, 1))
            slope = post_ops.prelu_of_channels(), slopes
        else:
            _activate(post_ops, problem.activation)
        if problem.residual:
            arguments.append((post_ops.add(result), result))
        _activate(post_ops, problem.final_activation)
        if slope:
            arguments.append(slope)
        arguments.append((onednn.RESULT, result))
        sides = problem.padding[:2], problem.padding[2:]
        primitive = onednn.convolution(
            images, chosen, bias, result, problem.strides, problem.dilation, sides, post_ops
        )
        self.weights = _Weights(problem, given, primitive.weights)
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


class _Weights:
    """The weights of a convolution in oneDNN's layout: packed once if they have an id, else in each call."""

    def __init__(self, problem: Problem, given: onednn.Handle, chosen: onednn.Handle) -> None:
        self.packed = onednn.Buffer(chosen)
        self._are_kept = bool(problem.weight_id)
        self._given = onednn.memory(given, 0)
        arguments = {onednn.SOURCE: self._given, onednn.RESULT: self.packed.memory}
        self._packing = onednn.Execution(onednn.reorder(given, chosen), arguments)
        count = problem.filters * (problem.channels // problem.groups) * math.prod(problem.kernel)
        self._size = count * (4 if problem.dtype == "float32" else 2)  # bytes
        self._address = 0
        self._sampled = np.zeros(0, "uint8")
        self._sample: bytes | None = None

    def pack(self, stream: onednn.Handle, address: int) -> None:
        if self._are_kept and not self._are_others(address):
            return
        onednn.move(self._given, address)
        self._packing.run(stream)

    def _are_others(self, address: int) -> bool:
        """Whether they are not those packed: the id says that they are, unless a user changed them."""
        if address != self._address:
            everything = (ctypes.c_uint8 * self._size).from_address(address)
            self._sampled = np.ctypeslib.as_array(everything)[:: max(1, self._size // SAMPLES)]
            self._address = address
        sample = self._sampled.tobytes()
        if sample == self._sample:
            return False
        self._sample = sample
        return True


def _layout(problem: Problem, size: Sequence[int], channels: int) -> onednn.Handle:
    """NHWC data, whose extents oneDNN wants in the order NCHW."""
    height, width = size
    strides = height * width * channels, 1, width * channels, channels
    return onednn.layout((problem.batch, channels, height, width), problem.dtype, strides)


def _weight_layouts(problem: Problem) -> tuple[onednn.Handle, onednn.Handle]:
    """That of oneDNN's choice, and that of the operator."""
    rows, columns = problem.kernel
    channels = problem.channels // problem.groups
    shape = [problem.filters, channels, rows, columns]
    strides = [rows * columns * channels, 1, columns * channels, channels]
    if problem.groups > 1:
        shape[:1] = problem.groups, problem.filters // problem.groups
        strides.insert(0, strides[0] * shape[1])
    return onednn.layout(shape, problem.dtype), onednn.layout(shape, problem.dtype, strides)


def _activate(post_ops: onednn.PostOps, activation: Activation) -> None:
    constants = {"silu": (1.0, 0.0), "hard_swish": (1 / 6, 0.5)}  # of oneDNN's more general functions
    given = constants.get(activation.name, (activation.low, activation.high))
    if activation.name != "none":
        post_ops.elementwise(activation.name, *given)
