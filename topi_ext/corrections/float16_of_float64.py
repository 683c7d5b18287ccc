"""Rounding of float64 to float16 on CPUs, by way of float32 as in PyTorch.

LLVM calls a function of the compiler's library for it. Where torch is imported before TVM, that is the one of
GCC, which returns its result in another register than TVM's LLVM reads: numbers are what was there before.
Importing this module has LLVM convert twice, for which it needs no such function.
"""

from __future__ import annotations

import tvm
from tvm import tir

from .._floats import lanes_of, vector_type

BUILD = "target.build.llvm"
_build = tvm.get_global_func(BUILD, allow_missing=True)


def build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    for name, function in mod.functions.items():
        body = tir.stmt_functor.ir_transform(function.body, None, _by_float32, ["tir.Cast"])
        if not body.same_as(function.body):
            mod = mod.clone()
            mod[name] = function.with_body(body)
    return _build(mod, target)


def _by_float32(cast: tir.Cast) -> tir.Cast | None:
    if not (cast.dtype.startswith("float16") and cast.value.dtype.startswith("float64")):
        return None
    return tir.Cast(cast.dtype, tir.Cast(vector_type("float32", lanes_of(cast)), cast.value))


if _build is not None:
    tvm.register_func(BUILD, build, override=True)
