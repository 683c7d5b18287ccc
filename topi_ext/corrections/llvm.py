"""What is changed in kernels for CPUs on their way through LLVM, in the one function of TVM that builds them.

- TVM tells LLVM that there is no NaN, so that outside of vectors "x < NaN" is true, and NaN equals all
  numbers. An attribute of each of LLVM's functions takes that back. TVM's code for "x != y" says the same
  again, and becomes "not x == y".
- LLVM calls a function of the compiler's library to round float64 to float16. Where torch is imported before
  TVM, that is the one of GCC, which returns its result in another register than TVM's LLVM reads: numbers are
  what was there before. By way of float32, as in PyTorch, LLVM needs no such function.
- Tensors of bfloat16 have undefined strides, and integers may overflow: see `bfloat16` and `overflow`. The
  extremes of two floats are functions: see `extremes_of_two`.
"""

from __future__ import annotations

import re
import tempfile
from functools import partial
from pathlib import Path

import tvm
from tvm import tir

from .._floats import lanes_of, vector_type
from .bfloat16 import without_undefined_strides
from .extremes_of_two import called_of_llvm, defined_for_llvm
from .overflow import wrapped

BUILD = "target.build.llvm"
ATTRIBUTES = re.compile(r"^(attributes #\d+ = \{.*)\}$", re.MULTILINE)

_build = tvm.get_global_func(BUILD, allow_missing=True)


def build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    functions = {name: _changed(function) for name, function in mod.functions.items()}
    source = _build(tvm.IRModule(functions, attrs=mod.attrs), target).get_source("ll")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.ll")
        path.write_text(ATTRIBUTES.sub(r'\1"no-nans-fp-math"="false" }', source))
        return tvm.runtime.load_module(str(path))


def _changed(function: tir.PrimFunc) -> tir.PrimFunc:
    function = without_undefined_strides(function)
    called: set[str] = set()
    replaced = partial(_replaced, called)
    body = tir.stmt_functor.ir_transform(function.body, None, replaced, ["tir.NE", "tir.Cast", "tir.Call"])
    body = defined_for_llvm(body, called)
    return function if body.same_as(function.body) else function.with_body(body)


def _replaced(called: set[str], node: tir.NE | tir.Cast | tir.Call) -> tir.PrimExpr | None:
    if isinstance(node, tir.Call):
        called.update(filter(None, [called_of_llvm(node)]))
        return wrapped(node)
    if isinstance(node, tir.NE):
        return tir.Not(tir.EQ(node.a, node.b)) if "float" in node.a.dtype else None
    if node.dtype.startswith("float16") and node.value.dtype.startswith("float64"):
        return tir.Cast(node.dtype, tir.Cast(vector_type("float32", lanes_of(node)), node.value))
    return None


if _build is not None:
    tvm.register_func(BUILD, build, override=True)
