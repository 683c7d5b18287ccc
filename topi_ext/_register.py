"""Register a Relay operator of this package from Python: its types, its shapes, and a kernel per target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

import tvm
from tvm import relay, te, tir
from tvm.relay.op import op as registry
from tvm.target import override_native_generic_func

from ._types import IntExpr

MAX_KNOWN = 10_000  # types per operator: more than any network has
KERNELS = {"llvm": "cpu", "cuda": "cuda"}  # the modules, by the target's kind


def refuse(name: str, reason: str) -> NoReturn:
    """Raise the error of an operator that does not accept its arguments."""
    raise tvm.TVMError(f"{name}: {reason}")


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
    kernels_for: Callable[[tvm.ir.Attrs, Sequence[te.Tensor], tvm.target.Target], Any],
    compute: Callable,
) -> None:
    """Register an operator, unless it is registered: TVM keeps it, even if the module is imported again.

    `arguments` describes the arguments, by name. `compute(kernels, attrs, inputs)` returns the outputs,
    computed by the kernels for the target, whose function `schedule` schedules them; most operators find
    their kernels by `kernels_in`. Without a shape function, all shapes must be static.
    """
    if name in tvm.ir.Op.list_op_names():
        return

    def strategy(
        attrs: tvm.ir.Attrs, inputs: Sequence[te.Tensor], _out_type: relay.Type, target: tvm.target.Target
    ) -> registry.OpStrategy:
        kind = target.kind.name
        if kind not in KERNELS:
            refuse(name, f"there are kernels for the targets {' and '.join(KERNELS)}, but not for {kind}")
        kernels = kernels_for(attrs, inputs, target)

        def schedule(
            _attrs: tvm.ir.Attrs, outs: Sequence[te.Tensor], target: tvm.target.Target
        ) -> te.Schedule:
            with target:
                return kernels.schedule(outs)

        result = registry.OpStrategy()
        result.add_implementation(
            lambda _attrs, inputs, _out_type: compute(kernels, attrs, inputs), schedule, name=f"{name}.{kind}"
        )
        return result

    registry.register(name, description)
    operator = relay.op.get(name)
    operator.set_num_inputs(len(arguments))
    for argument, meaning in arguments.items():
        operator.add_argument(argument, "Tensor", meaning)
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(10)
    operator.add_type_rel(name.split(".")[-1], _remembering(type_relation))
    registry.register_pattern(name, registry.OpPattern.OPAQUE)
    if shape_function is not None:
        registry.register_shape_func(name, False, shape_function)
    registry.register_strategy(name, override_native_generic_func(f"{name}.strategy")(strategy))


def _remembering(type_relation: Callable) -> Callable:
    """The type relation with a cache, since TVM infers the type of each call in nearly every pass."""
    known: dict[tuple[tvm.ir.Attrs, int], tuple[Sequence[relay.Type], relay.Type]] = {}

    def remembering(types: Sequence[relay.Type], attrs: tvm.ir.Attrs) -> relay.Type | None:
        key = attrs, tvm.ir.structural_hash(types)  # the attributes of a call stay the same object
        of_types, result = known.get(key, (None, None))
        if of_types is not None and tvm.ir.structural_equal(of_types, types):
            return result
        result = type_relation(types, attrs)
        if result is not None:
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[key] = types, result
        return result

    return remembering
