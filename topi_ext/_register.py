"""Register an operator of this package from Python: its types, its shapes, and a kernel per target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import tvm

from ._tvm import Attrs, TVMError, is_registered, register_operator, te, tir
from ._types import IntExpr

KERNELS = {"llvm": "cpu", "cuda": "cuda"}  # the modules, by the target's kind


def refuse(name: str, reason: str) -> NoReturn:
    """Raise the error of an operator that does not accept its arguments."""
    raise TVMError(f"{name}: {reason}")


def known(extent: IntExpr) -> int | None:
    """An extent as an int, or None where it is known only at run time."""
    return int(extent) if isinstance(extent, (int, tir.IntImm)) else None


def kernels_in(package: str) -> Callable[..., ModuleType]:
    """The module of a package that has the kernels for a target."""
    return lambda _attrs, _inputs, target: importlib.import_module(f"{package}.{KERNELS[target.kind.name]}")


def register(
    name: str,
    description: str,
    arguments: dict[str, str],
    type_relation: Callable,
    shape_function: Callable | None,
    kernels_for: Callable[[Attrs, Sequence[te.Tensor], tvm.target.Target], Any],
    compute: Callable,
) -> None:
    """Register an operator, unless it is registered: TVM keeps it, even if the module is imported again.

    `arguments` describes the arguments, by name. `compute(kernels, attrs, inputs)` returns the outputs,
    computed by the kernels for the target; most operators find their kernels by `kernels_in`. Kernels that
    are more than one external operation have a function `schedule`, which only Relay uses. Without a shape
    function, which only Relay needs, all shapes must be static.
    """
    if is_registered(name):
        return

    def implementation_for(
        attrs: Attrs, inputs: Sequence[te.Tensor], target: tvm.target.Target
    ) -> tuple[Callable, Any]:
        """The function from inputs to outputs, and the kernels that it calls."""
        if target.kind.name not in KERNELS:
            targets = " and ".join(KERNELS)
            refuse(name, f"there are kernels for the targets {targets}, but not for {target.kind.name}")
        kernels = kernels_for(attrs, inputs, target)
        return partial(compute, kernels, attrs), kernels

    register_operator(name, description, arguments, type_relation, shape_function, implementation_for)
