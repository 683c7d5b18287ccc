"""The convolution on LLVM where each filter sees one whole image: a product of a matrix and a vector.

It takes as long as its weights take to be read, each once, as they are: a few filters at a time are
multiplied by vectors of the image. oneDNN takes more for the call alone than the squeeze-and-excitation of a
MobileNetV3 has to compute, and up to one and a half times as long for the weights of a classifier.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tvm

from .._floats import Locals, spread
from .._kernel import bytes_of, in_a_row, in_vectors, ramp, total_of
from .._tvm import BufferVar, IRBuilder, te, tir, topi
from .epilogue import finish
from .problem import Problem

LANES, FEW_LANES = 16, 4  # of vectors along the image, and of those of what is left over
FILTERS = 4  # whose sums are in registers, and whose weights are read side by side
ENOUGH_FOR_THREADS = 1 << 19  # bytes of weights: fewer are read before a thread has started
MAX_WEIGHTS = 2**31 - 1  # which are counted in 32 bits


def is_better(problem: Problem) -> bool:
    """Whether this computes the problem, faster than oneDNN and the kernel for images of any size."""
    one_image = problem.batch == problem.block == 1 and problem.is_product
    is_float32 = problem.dtype == "float32" and not problem.is_quantized
    return one_image and is_float32 and problem.filters * problem.taps * problem.channels <= MAX_WEIGHTS


def conv2d_nhwc(
    problem: Problem,
    data: te.Tensor,
    weight: te.Tensor,
    bias: te.Tensor | None,
    residual: te.Tensor | None,
    slope: te.Tensor | None,
    _scale: te.Tensor | None,
    _target: tvm.target.Target,
) -> te.Tensor:
    """See `topi_ext.conv2d_nhwc`."""
    optional = {"bias": bias, "residual": residual, "slope": slope}
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        image, weights, *of_filters, result = (in_a_row(ib, buffer)[0] for buffer in (*ins, *outs))
        _Filters(ib, problem, image, weights, dict(zip(given, of_filters)), result).emit()
        return ib.get()

    inputs = [data, weight, *given.values()]
    return te.extern(problem.shape, inputs, emit, dtype=problem.dtype, name="conv2d_nhwc")


def schedule(outs: Sequence[te.Tensor]) -> te.Schedule:
    return topi.generic.schedule_extern(outs)


def schedule_function(_problem: Problem, function: tir.PrimFunc) -> tir.PrimFunc:
    return function


class _Filters:
    def __init__(
        self,
        ib: IRBuilder,
        problem: Problem,
        image: BufferVar,
        weight: BufferVar,
        of_filters: dict[str, BufferVar],
        result: BufferVar,
    ) -> None:
        self.ib, self.problem, self.local = ib, problem, Locals(ib, "global")
        self._image, self._weight, self._of_filters, self._result = image, weight, of_filters, result
        self._length = problem.taps * problem.channels

    def emit(self) -> None:
        filters, length = self.problem.filters, self._length
        size = bytes_of(self.problem.dtype) * filters * length
        kind = "parallel" if size >= ENOUGH_FOR_THREADS else "serial"
        with self.ib.for_range(0, filters // FILTERS, "some", kind=kind) as some:
            self._emit_some(some * FILTERS, FILTERS)
        if filters % FILTERS:
            self._emit_some(tir.const(filters - filters % FILTERS), filters % FILTERS)

    def _emit_some(self, first: tir.PrimExpr, count: int) -> None:
        """The results of as many filters, from the first one on."""
        sums = [self._zeros() for _ in range(count)]
        for at, lanes in in_vectors(self.ib, self._length, LANES, FEW_LANES):
            pixels = self.local("pixels", self._image[ramp(at, 1, lanes)])
            some = ramp(0, 1, lanes)
            for number, partial in enumerate(sums):
                start = (first + number) * self._length + at
                partial[some] = partial[some] + pixels * self._weight[ramp(start, 1, lanes)]
        totals = self.ib.allocate("float32", count, "totals", scope="global")
        for number, partial in enumerate(sums):
            totals[number] = total_of(partial, LANES)
        once = functools.partial(self.local, "value")
        activations = self.problem.activation.name, self.problem.final_activation.name
        lanes = 1 if "gelu" in activations else count  # TVM has no erf of vectors for LLVM
        for begin in range(0, count, lanes):
            filters = ramp(first + begin, 1, lanes)
            of_filters = {name: array[filters] for name, array in self._of_filters.items()}
            total = totals[ramp(begin, 1, lanes)]
            self._result[filters] = finish(self.problem, total, **of_filters, once=once)

    def _zeros(self) -> BufferVar:
        partial = self.ib.allocate("float32", LANES, "partial", scope="global")
        partial[ramp(0, 1, LANES)] = spread(tir.const(0.0, "float32"), LANES)
        return partial
