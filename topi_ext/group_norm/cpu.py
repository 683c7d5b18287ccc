"""Normalization of groups for LLVM: groups in parallel, each read in vectors, once for its sums.

The sums are float64, so that the mean of the squares less the square of the mean is accurate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .._floats import Locals, spread, vector_type
from .._kernel import between, in_a_row, most_lanes, ramp, total_of
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir
from ..conv2d_nhwc.epilogue import activate
from .problem import Problem

LANES = 16  # of channels or pixels that are side by side


def group_norm(problem: Problem, tensors: dict[str, te.Tensor]) -> te.Tensor:
    """The result of the operator; `tensors` are the arguments that are given."""
    data = tensors["data"]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        buffers = {name: in_a_row(ib, each)[0] for name, each in zip([*tensors, "result"], [*ins, *outs])}
        _Groups(ib, problem, buffers, dtype_of(data), in_a_row(ib, outs[0])[1]).emit()
        return ib.get()

    return te.extern([data.shape], [*tensors.values()], emit, dtype=[dtype_of(data)], name="group_norm")


class _Vector(NamedTuple):
    """Elements that are side by side: of channels, or of the pixels of one channel."""

    at: tir.PrimExpr
    lanes: int
    channel: tir.PrimExpr  # the first
    channels: int


class _Groups:
    def __init__(
        self, ib: IRBuilder, problem: Problem, buffers: dict[str, BufferVar], dtype: str, index_type: str
    ) -> None:
        self.ib, self.problem, self.local = ib, problem, Locals(ib, "global")
        self._buffers, self._dtype, self._index_type = buffers, dtype, index_type
        lanes = 1 if dtype == "bfloat16" else LANES  # TVM has no code to cast vectors of it
        self._lanes = most_lanes(problem.of_group, lanes) if problem.is_last else lanes

    def emit(self) -> None:
        ib, problem = self.ib, self.problem
        count = problem.pixels * problem.of_group
        with ib.for_range(0, problem.images * problem.groups, "group", kind="parallel") as task:
            image = self.local("image", tir.truncdiv(task, problem.groups).astype(self._index_type))
            group = self.local("group", tir.truncmod(task, problem.groups).astype(self._index_type))
            sums, squares = self._zeros("sums"), self._zeros("squares")
            for vector in self._vectors(image, group):
                some = ramp(0, 1, vector.lanes)
                value = self._read("data", vector.at, vector.lanes, "float64")
                sums[some] = sums[some] + value
                squares[some] = squares[some] + value * value
            number = self.local("number", tir.Cast("float64", count))
            mean = self.local("mean", total_of(sums, self._lanes) / number)
            # Of zero and NaN, LLVM keeps the second.
            variance = te.max(
                tir.const(0.0, "float64"), total_of(squares, self._lanes) / number - mean * mean
            )
            root = tir.sqrt(variance + self.local.exact(problem.epsilon, "float64"))
            factor = self.local("factor", (tir.const(1.0, "float64") / root).astype("float32"))
            center = self.local("center", mean.astype("float32"))
            for vector in self._vectors(image, group):
                self._write(vector, center, factor)

    def _zeros(self, name: str) -> BufferVar:
        array = self.ib.allocate("float64", self._lanes, name, scope="global")
        array[ramp(0, 1, self._lanes)] = spread(tir.const(0.0, "float64"), self._lanes)
        return array

    def _vectors(self, image: tir.PrimExpr, group: tir.PrimExpr) -> Iterator[_Vector]:
        ib, problem, lanes = self.ib, self.problem, self._lanes
        first = group * problem.of_group
        if problem.is_last:
            with ib.for_range(0, problem.pixels, "pixel") as pixel:
                start = self.local("start", (image * problem.pixels + pixel) * problem.channels + first)
                with ib.for_range(0, problem.of_group // lanes, "c") as c:
                    yield _Vector(start + c * lanes, lanes, first + c * lanes, lanes)
            return
        runs = tir.truncdiv(problem.pixels, lanes)
        with ib.for_range(0, problem.of_group, "c") as c:
            channel = self.local("channel", first + c)
            start = self.local("start", (image * problem.channels + channel) * problem.pixels)
            with ib.for_range(0, runs, "run") as run:
                yield _Vector(start + run * lanes, lanes, channel, 1)
            if lanes > 1:
                with between(ib, runs * lanes, problem.pixels) as pixel:
                    yield _Vector(start + pixel, 1, channel, 1)

    def _write(self, vector: _Vector, mean: tir.PrimExpr, factor: tir.PrimExpr) -> None:
        at, lanes, *channels = vector
        value = (self._read("data", at, lanes) - spread(mean, lanes)) * spread(factor, lanes)
        if "gamma" in self._buffers:
            value = value * spread(self._read("gamma", *channels), lanes)
        if "beta" in self._buffers:
            value = value + spread(self._read("beta", *channels), lanes)
        value = activate(self.problem.activation, value)
        self._buffers["result"][ramp(at, 1, lanes)] = value.astype(vector_type(self._dtype, lanes))

    def _read(self, name: str, at: tir.PrimExpr, lanes: int, dtype: str = "float32") -> tir.PrimExpr:
        return self._buffers[name][ramp(at, 1, lanes)].astype(vector_type(dtype, lanes))
