"""SiLU behind oneDNN's convolutions in bfloat16, by instructions of AVX-512 in half of oneDNN's time.

oneDNN computes it with a division and as precisely as float32 is, which is a third of the time that YOLO's
convolutions take. Here, the convolution writes its sums, and while these are in the cache, SiLU takes their
place. Where the whole result is larger than the cache, that goes by bands of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm

from .._tvm import HAS_RELAY, IRBuilder, tir
from .bands import band_of, rows_of_a_band
from .problem import Activation, Problem

BAND = 1 << 20  # bytes of a result
AT_ONCE, LANES = 32, 16  # elements of bfloat16 in a vector, and of float32
FEATURES = "avx512f", "avx512bw", "avx512dq"
PARALLEL = 1 << 16  # elements that are worth a second thread
NONE = Activation("none", 0.0, 0.0)
LOG2_E = 1.44269504
POWER_OF_2 = (
    0.0555041087,
    0.2402265,
    0.6931472,
    1.0,
)  # within 2e-4 from -1/2 to 1/2
TO_NEAREST, AS_USUAL = 8, 4  # without exceptions; in the current way of rounding


def is_better(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether oneDNN's convolution and this take less time than its own with SiLU."""
    is_alone = problem.activation.name == "silu" and problem.final_activation.name == "none"
    if not (
        HAS_RELAY and is_alone and problem.dtype == problem.out_dtype == "bfloat16" and problem.block == 1
    ):
        return False
    if problem.residual not in (None, "bfloat16") or problem.out_size[1] * problem.filters % AT_ONCE:
        return False
    return bool(tvm.target.codegen.target_has_features([*FEATURES], target))


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
    rows = rows_of_a_band(plain, row * 2, BAND)
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
    """Of integers, since TVM takes the bytes of a bfloat16 for four."""
    return tir.decl_buffer(shape, "uint16", data=whole.data, elem_offset=first)


def _silu(
    ib: IRBuilder, result: tir.Buffer, residual: tir.Buffer | None, first: tir.PrimExpr, count: tir.PrimExpr
) -> None:
    """In place, of so many elements; what is added to it, too."""
    sums, added = _as_integers(result), None if residual is None else _as_integers(residual)
    is_small = isinstance(count, int) and count < PARALLEL
    with ib.for_range(0, count // AT_ONCE, "vector", kind="serial" if is_small else "parallel") as vector:
        halves = []
        for half in range(0, AT_ONCE, LANES):
            at = first + vector * AT_ONCE + half
            value = _of_vector(_widened(sums, at))
            if added is not None:
                value = value + _widened(added, at)
            halves.append(_rounded(value))
        upper = [tir.const(2 * lane + 1, "int32") for lane in range(AT_ONCE)]
        ib.emit(sums.vstore([first + vector * AT_ONCE], tir.Shuffle(halves, upper)))


def _as_integers(buffer: tir.Buffer) -> tir.Buffer:
    """TVM has no vectors of bfloat16."""
    return tir.decl_buffer((tir.max_value("int32"),), "uint16", data=buffer.data)


def _widened(buffer: tir.Buffer, at: tir.PrimExpr) -> tir.PrimExpr:
    upper = buffer.vload([at], f"uint16x{LANES}").astype(f"uint32x{LANES}")
    return tir.reinterpret(f"float32x{LANES}", upper << tir.const(16, "uint32"))


def _rounded(value: tir.PrimExpr) -> tir.PrimExpr:
    """Numbers of bfloat16 in the upper half of each element; what is halfway between two, away from zero."""
    bits = tir.reinterpret(f"uint32x{LANES}", value) + tir.const(1 << 15, "uint32")
    return tir.reinterpret(f"uint16x{2 * LANES}", bits)


def _of_vector(x: tir.PrimExpr) -> tir.PrimExpr:
    """x / (1 + 2 ** -x log2(e)): the power's whole exponent by itself, the quotient within 2 ** -14."""
    exponent = x * tir.const(-LOG2_E, "float32")
    part = _instruction("mask.reduce.ps.512", exponent, TO_NEAREST)
    power = tir.const(POWER_OF_2[0], "float32")
    for coefficient in POWER_OF_2[1:]:
        power = power * part + tir.const(coefficient, "float32")
    scaled = _instruction("mask.scalef.ps.512", power, exponent - part)
    return x * _instruction("rcp14.ps.512", scaled + tir.const(1, "float32"))


def _instruction(name: str, *operands: tir.PrimExpr | int) -> tir.PrimExpr:
    """One of all lanes; those that round have a last operand that says how."""
    type_ = f"float32x{LANES}"
    values = [tir.const(each, "int32") if isinstance(each, int) else each for each in operands]
    values += [tir.const(0, type_), tir.const((1 << LANES) - 1, "uint16")]
    if name.startswith("mask."):
        values.append(tir.const(AS_USUAL, "int32"))
    return tir.call_llvm_pure_intrin(
        type_, f"llvm.x86.avx512.{name}", tir.const(len(values), "uint32"), *values
    )
