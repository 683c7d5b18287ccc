"""What a target computes fast, and in which types, in either TVM."""

from __future__ import annotations

import warnings
from typing import Any

from topi_ext.bootstrap import tvm_in_use
from topi_ext.conv2d_nhwc import onednn
from topi_ext.conv2d_nhwc.cuda import arch_of

import tvm

from ..errors import one_line
from .names_for_llvm import check_names_for_llvm

LISTS = ("keys", "libs", "mattr")  # options of targets
# The first architecture with tensor cores for the type, that with kernels of this project for int8.
TENSOR_CORES = {"float16": 75, "bfloat16": 80, "int8": 80}


def target_of(target: str | tvm.target.Target, caller: str) -> tvm.target.Target:
    """The target of that name; raises ValueError with what to give instead if TVM does not know it."""
    try:
        return parsed(target)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise ValueError(
            f"{caller}: TVM does not know the target {target!r} ({one_line(reason)}): give such as "
            '"llvm", topi_ext.cpu_target() or "cuda -arch=sm_90"'
        ) from reason


def target_or_current(target: str | tvm.target.Target | None, caller: str) -> tvm.target.Target | None:
    """The same, or the target of the context, which may be none, where none is given."""
    return target_of(target, caller) if target else tvm.target.Target.current()


def parsed(target: str | tvm.target.Target) -> tvm.target.Target:
    """The target of a text such as "cuda -arch=sm_90"; TVM 0.27 itself takes options in JSON only."""
    made = _made(target)
    check_names_for_llvm(made)
    return made


def _made(target: str | tvm.target.Target) -> tvm.target.Target:
    if isinstance(target, str):
        _warn_of_unknown_gpu(target)
    if tvm_in_use.has_relay or not isinstance(target, str) or target.startswith("{"):
        return tvm.target.Target(target)
    kind, *options = target.split() or [""]
    fields: dict[str, Any] = {"kind": kind}
    for option in options:
        name, equals, value = option.lstrip("-").partition("=")
        if not equals:
            raise ValueError(f"{option} has no value")
        fields[name] = value.split(",") if name in LISTS else int(value) if value.isdigit() else value
    return tvm.target.Target(fields, host="llvm" if kind == "cuda" else None)


def _warn_of_unknown_gpu(text: str) -> None:
    """Where there is no GPU to ask, TVM takes an old architecture; its note does not say what that costs."""
    if text.split()[:1] == ["cuda"] and "-arch" not in text and not tvm.cuda().exist:
        warnings.warn(
            f"the target {text!r} has no -arch, and there is no GPU here to ask: it stands for the oldest "
            'GPUs, without tensor cores and half precision; give such as "cuda -arch=sm_90"',
            stacklevel=5,
        )


def is_for_gpu(target: tvm.target.Target | None) -> bool:
    return target is not None and target.kind.name == "cuda"


def is_for_cpu(target: tvm.target.Target | None) -> bool:
    return target is not None and target.kind.name == "llvm"


def has_onednn(target: tvm.target.Target | None) -> bool:
    return target is not None and is_for_cpu(target) and onednn.LIBRARY in target.attrs.get("libs", ())


def has_tensor_cores(target: tvm.target.Target | None, dtype: str) -> bool:
    """Whether a target has tensor cores for this type."""
    return is_for_gpu(target) and dtype in TENSOR_CORES and arch_of(target) >= TENSOR_CORES[dtype]


def best_dtype(target: tvm.target.Target | None) -> str:
    return "float16" if has_tensor_cores(target, "float16") else "float32"


def check_that_a_cpu_multiplies(dtype: str, target: tvm.target.Target, pipeline: str) -> None:
    if not has_onednn(target):
        raise ValueError(
            f"{pipeline}: in {dtype}, a CPU needs oneDNN: give a target with -libs={onednn.LIBRARY}, "
            "such as topi_ext.cpu_target()"
        )
    if not onednn.multiplies(dtype):
        raise ValueError(f"{pipeline}: oneDNN has no convolutions in {dtype} for this processor")
