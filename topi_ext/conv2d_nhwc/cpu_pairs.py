"""Sums of int8 on x86: an instruction multiplies pairs of int16 and adds the products, exactly, in int32.

It does twice as many products as one that multiplies float32, and several times as many as one for int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from .._tvm import IRBuilder, te, tir

# By what the processor has, the best first: the instruction, and how many sums it makes.
INSTRUCTIONS = {"avx512bw": ("llvm.x86.avx512.pmaddw.d.512", 16), "avx2": ("llvm.x86.avx2.pmadd.wd", 8)}
OF_EVERY_X86_64 = "llvm.x86.sse2.pmadd.wd", 4


def instruction_of(target: tvm.target.Target) -> tuple[str, int] | None:
    """The instruction to use for a target, or None where it has none."""
    codegen = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", "")) or codegen.llvm_get_system_triple()
    if not triple.startswith(("x86_64", "amd64")):
        return None
    for feature, instruction in INSTRUCTIONS.items():
        if codegen.target_has_features([feature], target):
            return instruction
    return OF_EVERY_X86_64


def intrinsic(lanes: int, target: tvm.target.Target) -> te.TensorIntrin:
    """Adds to `lanes` sums the products of a pair of values and a pair for each sum."""
    found = instruction_of(target)
    assert found is not None
    name, at_once = found
    pair = te.placeholder((2,), "int16", name="pair")
    pairs = te.placeholder((lanes, 2), "int16", name="pairs")
    c = te.reduce_axis((0, 2), "c")
    sums = te.compute(
        (lanes,), lambda k: te.sum(pair[c].astype("int32") * pairs[k, c].astype("int32"), axis=c), name="sums"
    )

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer], multiplies: bool, adds: bool) -> tir.Stmt:
        (pair, pairs), (sums,), ib = ins, outs, IRBuilder()
        wide, factors = f"int32x{at_once}", f"int16x{2 * at_once}"
        for first in range(0, lanes, at_once):
            value = tir.const(0, wide)
            if multiplies:
                both = tir.reinterpret("int32", pair.vload([0], "int16x2"))
                own = tir.reinterpret(factors, tir.Broadcast(both, at_once))
                each = pairs.vload([first, 0], factors)
                value = tir.call_llvm_pure_intrin(wide, name, tir.const(2, "uint32"), own, each)
            if adds:
                value = value + sums.vload([first], wide)
            ib.emit(sums.vstore([first], value))
        return ib.get()

    return te.decl_tensor_intrin(
        sums.op,
        lambda ins, outs: (
            emit(ins, outs, multiplies=True, adds=False),
            emit(ins, outs, multiplies=False, adds=False),
            emit(ins, outs, multiplies=True, adds=True),
        ),
        binds={sums: tir.decl_buffer(sums.shape, sums.dtype, "sums", offset_factor=1, scope="local")},
        default_buffer_params={"offset_factor": 1},
    )
