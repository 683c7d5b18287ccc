"""The sigmoid of sixteen numbers by instructions of AVX-512, without a division."""

from __future__ import annotations

import tvm

from ._tvm import HAS_RELAY, te, tir
from ._vector_math import LOG2_E, constant, polynomial

FEATURES = "avx512f", "avx512bw", "avx512dq"
LANES = 16
VECTOR = f"float32x{LANES}"
# Of 2 ** x from -1/2 to 1/2, the highest power first: within 2e-4, a tenth of bfloat16's step, and 2e-7.
ROUGH = 0.0555041087, 0.2402265, 0.6931472, 1.0
PRECISE = 1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 0.0555041087, 0.2402265069, 0.6931471806, 1.0
TO_NEAREST, AS_USUAL = 8, 4  # without exceptions; in the current way of rounding


def has_instructions(target: tvm.target.Target) -> bool:
    """Whether LLVM may use them for a target."""
    return HAS_RELAY and bool(tvm.target.codegen.target_has_features([*FEATURES], target))


def sigmoid(x: tir.PrimExpr, precise: bool) -> tir.PrimExpr:
    """1 / (1 + 2 ** -x log2(e)): within 3e-4 of it or, if precise, within 1e-6; 0 and 1 at the infinities."""
    exponent = x * constant(-LOG2_E)
    rest = _instruction("mask.reduce.ps.512", exponent, TO_NEAREST)
    whole = exponent - rest
    power = polynomial(PRECISE if precise else ROUGH, rest)
    below = _instruction("mask.scalef.ps.512", power, whole) + constant(1)
    quotient = _instruction("rcp14.ps.512", below)
    if not precise:
        return quotient
    largest = te.min(below, constant(2.0**126))  # times a quotient of 0, which is that of infinity
    return quotient * (constant(2) - largest * quotient)


def _instruction(name: str, *operands: tir.PrimExpr | int) -> tir.PrimExpr:
    """One of all lanes; those that round have a last operand that says how."""
    values = [tir.const(each, "int32") if isinstance(each, int) else each for each in operands]
    values += [tir.const(0, VECTOR), tir.const((1 << LANES) - 1, "uint16")]
    if name.startswith("mask."):
        values.append(tir.const(AS_USUAL, "int32"))
    count = tir.const(len(values), "uint32")
    return tir.call_llvm_pure_intrin(VECTOR, f"llvm.x86.avx512.{name}", count, *values)
