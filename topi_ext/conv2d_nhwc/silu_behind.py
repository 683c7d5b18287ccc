"""SiLU behind oneDNN's convolutions, by instructions of AVX-512 in half of oneDNN's time.

oneDNN computes it with a division, which is a third of the time that YOLO's convolutions take in bfloat16.
Here, the convolution writes its sums, and while these are in the cache, SiLU takes their place. Where the
whole result is larger than the cache, that goes by bands of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm

from .._avx512 import LANES, has_instructions, sigmoid
from .._kernel import bytes_of
from .._tvm import IRBuilder, tir
from . import winograd
from .bands import band_of, rows_of_a_band
from .problem import Activation, Problem

BAND = 1 << 20  # bytes of a result
AT_ONCE = {"float32": LANES, "bfloat16": 2 * LANES}  # numbers that are written together
HELD_AS = {"float32": "float32", "bfloat16": "uint16"}  # since TVM has no vectors of bfloat16
PARALLEL = 1 << 16  # numbers that are worth a second thread
NONE = Activation("none", 0.0, 0.0)


def is_better(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether oneDNN's convolution and this take less time than its own with SiLU."""
    dtype = problem.dtype
    if (problem.activation.name, problem.final_activation.name) != ("silu", "none") or problem.block > 1:
        return False
    if dtype not in AT_ONCE or problem.out_dtype != dtype or problem.residual not in (None, dtype):
        return False
    if not problem.has_known_size or problem.out_size[1] * problem.filters % AT_ONCE[dtype]:
        return False
    return has_instructions(target) and not (dtype == "float32" and winograd.is_better(problem))


def by_bands(
    problem: Problem,
    call: Callable[..., tir.PrimExpr],
    ins: Sequence[tir.Buffer],
    result: tir.Buffer,
) -> tir.Stmt:
    """The convolution of `ins`, by calls of `call` with problems and tensors, and SiLU."""
    data, *others = ins
    residual = others.pop() if problem.residual else None
    plain = replace(problem, activation=NONE, residual=None)
    (height, width), row = problem.out_size, problem.out_size[1] * problem.filters
    rows = rows_of_a_band(plain, row * bytes_of(problem.dtype), BAND)
    ib = IRBuilder()
    if rows >= height:
        ib.emit(call(plain, data, *others, result))
        _silu(ib, result, residual, 0, data.shape[0] * height * row)
        return ib.get()
    of_data = problem.size[1] * problem.channels
    with ib.for_range(0, data.shape[0], "image") as image:
        for begin in range(0, height, rows):
            count = min(rows, height - begin)
            band, first = band_of(plain, begin, count)
            source = (image * problem.size[0] + first) * of_data
            target = (image * height + begin) * row
            read = _part(data, (1, *band.size, problem.channels), source)
            written = _part(result, (1, count, width, problem.filters), target)
            ib.emit(call(band, read, *others, written))
            _silu(ib, result, residual, target, count * row)
    return ib.get()


def _part(whole: tir.Buffer, shape: Sequence[int], first: tir.PrimExpr) -> tir.Buffer:
    """Not of bfloat16, of which TVM counts four bytes for each."""
    return tir.decl_buffer(shape, HELD_AS[whole.dtype], data=whole.data, elem_offset=first)


def _silu(
    ib: IRBuilder, result: tir.Buffer, residual: tir.Buffer | None, first: tir.PrimExpr, count: tir.PrimExpr
) -> None:
    """In place, of so many numbers; what is added to it, too."""
    sums, added = _flat(result), None if residual is None else _flat(residual)
    is_small = isinstance(count, int) and count < PARALLEL
    dtype = result.dtype
    at_once = AT_ONCE[dtype]
    with ib.for_range(0, count // at_once, "vector", kind="serial" if is_small else "parallel") as vector:
        values = []
        for lane in range(0, at_once, LANES):
            at = first + vector * at_once + lane
            x = _read(sums, at)
            value = x * sigmoid(x, precise=dtype == "float32")
            values.append(value if added is None else value + _read(added, at))
        written = values[0] if dtype == "float32" else _as_bfloat16(values)
        ib.emit(sums.vstore([first + vector * at_once], written))


def _flat(buffer: tir.Buffer) -> tir.Buffer:
    return tir.decl_buffer((tir.max_value("int32"),), HELD_AS[buffer.dtype], data=buffer.data)


def _read(buffer: tir.Buffer, at: tir.PrimExpr) -> tir.PrimExpr:
    vector = buffer.vload([at], f"{buffer.dtype}x{LANES}")
    if buffer.dtype == "float32":
        return vector
    upper = vector.astype(f"uint32x{LANES}") << tir.const(16, "uint32")
    return tir.reinterpret(f"float32x{LANES}", upper)


def _as_bfloat16(values: Sequence[tir.PrimExpr]) -> tir.PrimExpr:
    """The upper halves of rounded numbers; what is halfway between two is rounded away from zero."""
    halves = [
        tir.reinterpret(
            f"uint16x{2 * LANES}", tir.reinterpret(f"uint32x{LANES}", value) + tir.const(1 << 15, "uint32")
        )
        for value in values
    ]
    upper = [tir.const(2 * lane + 1, "int32") for lane in range(len(values) * LANES)]
    return tir.Shuffle(halves, upper)
