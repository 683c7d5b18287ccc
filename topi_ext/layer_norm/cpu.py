"""Normalization for LLVM: rows, or runs of pixels, in parallel, each in vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .._floats import Locals, lanes_of, spread, vector_type
from .._kernel import between, ceil_div, in_a_row, in_vectors, ramp, total_of
from .._tvm import BufferVar, IRBuilder, dtype_of, te, tir
from .problem import Problem

LANES, FEW_LANES = 16, 4  # of channels that are side by side, and of those that are left over
PIXELS = 32  # that are side by side, where channels are not


def layer_norm(problem: Problem, tensors: dict[str, te.Tensor]) -> te.Tensor:
    """The result of the operator; `tensors` are the arguments that are given."""
    data = tensors["data"]

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        buffers = {name: in_a_row(ib, each)[0] for name, each in zip([*tensors, "result"], [*ins, *outs])}
        norm = _Norm(ib, problem, buffers, dtype_of(data), in_a_row(ib, outs[0])[1])
        norm.emit_rows() if problem.rows.is_last else norm.emit_pixels()
        return ib.get()

    return te.extern([data.shape], [*tensors.values()], emit, dtype=[dtype_of(data)], name="layer_norm")


class _Vector(NamedTuple):
    """Elements that are side by side: of channels, or of pixels."""

    at: tir.PrimExpr
    lanes: int
    channel: tir.PrimExpr  # the first
    channels: int


class _Norm:
    def __init__(
        self, ib: IRBuilder, problem: Problem, buffers: dict[str, BufferVar], dtype: str, index_type: str
    ) -> None:
        self.ib, self.problem, self.local = ib, problem, Locals(ib, "global")
        self._buffers, self._dtype, self._index_type = buffers, dtype, index_type
        self._has_vectors = dtype != "bfloat16"  # TVM has no code to cast vectors of it

    def emit_rows(self) -> None:
        channels = self.problem.rows.channels
        lanes = [LANES, FEW_LANES] if self._has_vectors and channels >= LANES else [1]
        with self.ib.for_range(0, self.problem.rows.outer, "row", kind="parallel") as row:
            start = self.local("start", row.astype(self._index_type) * channels)

            def vectors() -> Iterator[_Vector]:
                for c, some in in_vectors(self.ib, channels, *lanes):
                    yield _Vector(start + c, some, c, some)

            self._normalize(vectors, lanes[0], is_one_row=True)

    def emit_pixels(self) -> None:
        ib, inner = self.ib, self.problem.rows.inner
        lanes = PIXELS if self._has_vectors else 1
        runs = ceil_div(inner, lanes)
        with ib.for_range(0, self.problem.rows.outer * runs, "task", kind="parallel") as task:
            image = self.local("image", tir.truncdiv(task, runs).astype(self._index_type))
            first = self.local("first", tir.truncmod(task, runs).astype(self._index_type) * lanes)
            with ib.if_scope(first + lanes <= inner):
                self._emit_run(image, first, lanes)
            with ib.else_scope(), between(ib, first, inner) as pixel:
                self._emit_run(image, pixel, 1)

    def _emit_run(self, image: tir.PrimExpr, pixel: tir.PrimExpr, lanes: int) -> None:
        channels, inner = self.problem.rows.channels, self.problem.rows.inner
        start = self.local("start", image * channels * inner + pixel)

        def vectors() -> Iterator[_Vector]:
            with self.ib.for_range(0, channels, "c") as c:
                yield _Vector(start + c * inner, lanes, c, 1)

        self._normalize(vectors, lanes, is_one_row=False)

    def _normalize(self, vectors: Callable[[], Iterator[_Vector]], lanes: int, is_one_row: bool) -> None:
        """Normalize what is in `vectors`, of which none has more lanes."""
        ib, every = self.ib, ramp(0, 1, lanes)
        count, epsilon = map(self.local.exact, (self.problem.rows.channels, self.problem.epsilon))

        def mean_of(function: Callable[[tir.PrimExpr], tir.PrimExpr]) -> tir.PrimExpr:
            sums = ib.allocate("float32", lanes, "sums", scope="global")
            sums[every] = spread(tir.const(0.0, "float32"), lanes)
            for vector in vectors():
                some = ramp(0, 1, vector.lanes)
                sums[some] = sums[some] + function(self._read("data", vector.at, vector.lanes))
            if not is_one_row or lanes == 1:
                return self.local("mean", sums[every] / spread(count, lanes))
            return self.local("mean", total_of(sums, lanes) / count)

        mean = mean_of(lambda value: value)
        variance = mean_of(lambda value: _squared(value - spread(mean, lanes_of(value))))
        root = tir.sqrt(variance + spread(epsilon, lanes_of(variance)))
        factor = self.local("factor", spread(tir.const(1.0, "float32"), lanes_of(root)) / root)
        for at, lanes, *channels in vectors():
            value = (self._read("data", at, lanes) - spread(mean, lanes)) * spread(factor, lanes)
            if "gamma" in self._buffers:
                value = value * spread(self._read("gamma", *channels), lanes)
            if "beta" in self._buffers:
                value = value + spread(self._read("beta", *channels), lanes)
            self._buffers["result"][ramp(at, 1, lanes)] = value.astype(vector_type(self._dtype, lanes))

    def _read(self, name: str, at: tir.PrimExpr, lanes: int) -> tir.PrimExpr:
        return self._buffers[name][ramp(at, 1, lanes)].astype(vector_type("float32", lanes))


def _squared(value: tir.PrimExpr) -> tir.PrimExpr:
    return value * value
