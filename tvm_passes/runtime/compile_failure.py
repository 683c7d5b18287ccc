"""The error for a module that TVM cannot compile."""

from __future__ import annotations

import re

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from ..errors import one_line


class CompileFailure(RuntimeError):
    """One sentence that names the operator that TVM cannot compile, its place in the model, and the reason.

    The exception that TVM raised is the `__cause__`.
    """


def failure_of(what: str, target: tvm.target.Target, error: Exception) -> CompileFailure:
    arch = target.attrs.get("arch")
    name = f"{target.kind.name} -arch={arch}" if arch else target.kind.name
    return CompileFailure(f"cannot compile {what} for {name}: {_why(error)}")


def _why(error: Exception) -> str:
    """TVM's reason, without the kernel code that it quotes."""
    of_nvcc = re.search(r"Compilation error:\n.*?\berror: ([^\n]*)\n([^\n]*)", str(error), re.DOTALL)
    if of_nvcc:
        return " ".join(f"nvcc: {of_nvcc[1]}: {of_nvcc[2]}".split())
    fatal = re.search(r"Compilation error:\n(nvcc fatal[^\n]*)", str(error))  # before it reads the code
    if fatal:
        of_target = ": give the target an -arch that this nvcc knows" * ("architecture" in fatal[1])
        return " ".join(fatal[1].split()) + of_target
    reason = one_line(error)
    return re.split(r" with the following errors: # from tvm\.script| # from tvm\.script", reason)[0]
