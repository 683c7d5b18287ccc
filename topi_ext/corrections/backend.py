"""Corrections of TVM's code generation, and of its behavior on current machines."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import tvm
from tvm import tir
from tvm.relay.backend import te_compiler
from tvm.relay.op import _make

from .._cuda_source import change_by

HALF_A_WARP = re.compile(
    r"^( *)if \((\(\(int\)threadIdx\.x\) < (?:1|2|4|8|16))\) \{\n(.*?)^\1\}\n", re.MULTILINE | re.DOTALL
)
HALF_TANH = "CUDA_UNSUPPORTED_HALF_MATH_UNARY(htanh, tanhf)"


def apply() -> None:
    """Apply every correction; the user's own settings and callbacks stay."""
    _stay_off_the_network()
    _correct_cuda_source()
    _write_constants_exactly()
    _ask_once_how_tvm_was_built()
    _build_once_what_folds_constants()
    _take_lengths_as_python_has_them()


def _stay_off_the_network() -> None:
    """Keep AutoTVM from downloading tuned logs when something is built for a target."""
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")


def _take_lengths_as_python_has_them() -> None:
    """Make lengths of a constant shape int32; TVM passes NumPy integers, which become int64.

    TVM gives the result of argmax the type of the first length, and then mixes both types in fused functions.
    """

    def wrapped(make: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(make)
        def with_int32(*args: Any) -> Any:
            shape = [int(size) if isinstance(size, np.integer) else size for size in args[place]]
            return make(*args[:place], shape, *args[place + 1 :])

        return with_int32

    for name, place in {"broadcast_to": 1, "full": 1, "ones": 0, "tile": 1, "zeros": 0}.items():
        setattr(_make, name, wrapped(getattr(_make, name), place))


def _correct_cuda_source() -> None:
    change_by(lambda code: synchronise_warps(define_htanh_before_cuda_12_8(code)))


def define_htanh_before_cuda_12_8(code: str) -> str:
    """Drop `htanh` from TVM's fp16 header where CUDA has it, which is since 12.8."""
    older = "__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1208"
    return code.replace(HALF_TANH, f"#if {older}\n{HALF_TANH}\n#endif")


def synchronise_warps(code: str) -> str:
    """Let the last threads of a reduction, all of one warp, synchronize only with each other.

    TVM reduces types without warp shuffles (bfloat16, int8, uint8, bool) in shared memory, with a block-wide
    barrier in a branch that only part of the warp takes: on a GPU this may hang.
    """
    numbers = itertools.count()

    def corrected(found: re.Match[str]) -> str:
        indent, condition, body = found.groups()
        if "red_buf" not in body or "__syncthreads();" not in body:
            return found.group()
        mask = f"in_warp_{next(numbers)}"
        voted = f"{indent}unsigned {mask} = __ballot_sync(0xffffffffu, {condition});\n"
        body = body.replace("__syncthreads();", f"__syncwarp({mask});")
        return f"{voted}{indent}if ({condition}) {{\n{body}{indent}}}\n"

    return HALF_A_WARP.sub(corrected, code)


def _write_constants_exactly() -> None:
    """Keep constants exact: TVM writes floats into CUDA source with 7 digits; float32 needs 9, float64 17."""
    build = tvm.get_global_func("target.build.cuda", allow_missing=True)
    if build is None:
        return

    @tvm.register_func("target.build.cuda", override=True)
    def build_exactly(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        functions = {name: with_exact_constants(function) for name, function in mod.functions.items()}
        return build(tvm.IRModule(functions, attrs=mod.attrs), target)


def with_exact_constants(function: tir.PrimFunc) -> tir.PrimFunc:
    """The PrimFunc with each constant that needs more than seven digits as a sum of constants that do not.

    The compiler folds the sum, which rounds to the constant: each term is the remainder of those before it.
    """

    def exact(constant: tir.FloatImm) -> tir.PrimExpr | None:
        if constant.dtype == "bfloat16" and np.isinf(constant.value):  # which TVM writes as a name, `inff`
            return tir.Cast("bfloat16", tir.FloatImm("float32", constant.value))
        terms = _in_seven_digits(constant.value, str(constant.dtype))
        if len(terms) < 2:
            return None
        total, *greater = (tir.FloatImm(constant.dtype, term) for term in reversed(terms))
        for term in greater:
            total = tir.Add(term, total)
        return total

    return function.with_body(tir.stmt_functor.ir_transform(function.body, None, exact, ["FloatImm"]))


def _in_seven_digits(value: float, dtype: str) -> list[float]:
    if dtype not in ("float32", "float64") or not np.isfinite(value):
        return []
    of_type = np.dtype(dtype).type
    rest = of_type(value)
    terms: list[Any] = []
    while rest != 0 and len(terms) < 3:
        terms.append(of_type(f"{rest:.6e}"))
        rest -= terms[-1]
    return [float(term) for term in terms]


def _ask_once_how_tvm_was_built() -> None:
    """Remember an answer that TVM looks up for each length of each tensor: seconds per detector."""
    te_compiler.libinfo = functools.lru_cache(maxsize=None)(te_compiler.libinfo)


def _build_once_what_folds_constants() -> None:
    """Remember folded constants: TVM compiles code to fold each, 20 ms, again for every dynamic length."""
    build = tvm.get_global_func("relay.backend.build", allow_missing=True)
    if build is None:
        return
    built: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    @tvm.register_func("relay.backend.build", override=True)
    def build_once(mod: Any, target: Any, *host: Any) -> Any:
        if not isinstance(target, tvm.target.Target) or target.kind.name != "llvm":
            return build(mod, target, *host)
        key = (tvm.ir.structural_hash(mod), *map(str, (target, *host)))
        known, module = built.get(key, (None, None))
        if known is None or not tvm.ir.structural_equal(known, mod):
            module = build(mod, target, *host)
            if len(built) >= 1_000:
                built.clear()
            built[key] = (mod, module)
        return module


apply()
