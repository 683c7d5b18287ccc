"""Modules of Relay: compiled for the executor that suits them, run, and stored."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from topi_ext.quiet import quiet  # topi_ext comes before tvm

import tvm
from tvm import relay
from tvm.runtime.vm import Executable

from ...analysis.constants import fold_constants, with_weights
from ...analysis.static import is_static
from ...analysis.targets import has_onednn, is_for_cpu, is_for_gpu
from ...cleanup.separate_scalars import with_separate_scalars
from ...engine.free_variables import unchecked
from ...engine.graph import Graph, belongs_to_a_backend
from ...engine.without_collector import without_collector
from ..arrays import Array
from ..checked_reshapes import with_checked_reshapes
from ..completed import completed
from ..concurrency import plan_memory
from ..executors import Library, executor_of
from ..failure import explained
from ..llvm_parts import on_all_cores
from ..lowered_once import LoweredOnce
from ..signature import Signature, check_parameters
from ..typed_once import TypedOnce
from ..weights import name_apart, put_in, taken_out
from ..weights_in_turn import weights_in_turn

__all__ = [
    "Library",
    "built",
    "executor_of",
    "input_names",
    "module_of",
    "put_in",
    "signature_of",
    "taken_out",
]

# Passes of TVM that change results. The first moves a factor past a summand by dividing it: by zero, if a
# batch norm has one. The other adds and multiplies constants in another order, which overflows or rounds:
# `(x - 1000) * 100` becomes `x * 100 - 100000`. It also takes a sixth of the time to compile a detector.
DIVIDES, REORDERS = "ForwardFoldScaleAxis", "SimplifyExpr"


def signature_of(mod: tvm.IRModule) -> Signature:
    """What `main` takes and returns."""
    main = relay.transform.InferType()(mod)["main"]
    result = main.ret_type
    return Signature(
        {param.name_hint: param.checked_type for param in main.params},
        list(result.fields) if isinstance(result, relay.TupleType) else [result],
        dict(main.attrs.items()) if main.attrs else {},
    )


def module_of(lib: Library) -> tvm.runtime.Module:
    return getattr(lib, "module", lib)


def input_names(lib: tvm.runtime.Module) -> list[str]:
    """What a compiled `main` takes: of its parameters, those that are no weights by now."""
    if lib.implements_function("vm_load_executable"):
        return list(map(str, Executable(lib).get_function_params("main")))
    graph, weights = json.loads(lib["get_graph_json"]()), lib["get_graph_params"]()
    names = [graph["nodes"][node]["name"] for node in graph["arg_nodes"]]
    return [name for name in names if name not in weights]


def built(
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    params: Mapping[str, Array] | None,
    run_here: bool,
) -> Library:
    """Compile a module; `run_here`: for this process."""
    mod = relay.transform.InferType()(mod)
    check_parameters([(param.name_hint, param.checked_type) for param in mod["main"].params])
    target = tvm.target.Target(target)
    with quiet(), without_collector(), unchecked(), _at_level_3():
        try:
            is_static = _is_static(mod)
            with on_all_cores(run_here, is_static) if is_for_cpu(target) else contextlib.nullcontext():
                return _built(mod, target, is_static, params)
        except Exception as error:  # TVM raises many types, and does not say where in the model
            raise explained(
                error, mod, target, lambda kernel: _built(kernel, target, _is_static(kernel))
            ) from error


def _built(
    mod: tvm.IRModule, target: tvm.target.Target, is_static: bool, params: Mapping[str, Array] | None = None
) -> Library:
    if has_onednn(target):
        mod = weights_in_turn(mod)
    # TVM compiles each computation of weights alone: for batch norms and layouts of a detector, five seconds.
    mod = with_separate_scalars(completed(fold_constants(with_weights(mod, params))))
    if not is_static:
        return relay.vm.compile(with_checked_reshapes(mod), target)
    lib = relay.build(mod, target)
    name_apart(lib, [param.name_hint for param in mod["main"].params])
    if is_for_gpu(target):
        plan_memory(lib)
    return lib


def _at_level_3() -> AbstractContextManager[Any]:
    """The caller's pass context, or a copy of it at level 3 in which no pass runs that would change nothing.

    The instruments of a context are the caller's: they would end with the copy.
    """
    around = tvm.transform.PassContext.current()
    if around.opt_level >= 3 and around.instruments:
        if DIVIDES not in around.disabled_pass:
            warning = (
                f"compile: where a batch norm multiplies by 0, results may be NaN: {DIVIDES} divides by it"
            )
            advice = (
                f'give the PassContext that has instruments disabled_pass=["{DIVIDES}", "{REORDERS}"], too'
            )
            warnings.warn(f"{warning}; {advice}", stacklevel=4)
        return contextlib.nullcontext()
    instruments = around.instruments or [TypedOnce(), LoweredOnce()]
    disabled = [*around.disabled_pass, DIVIDES, REORDERS]
    settings = around.required_pass, disabled, instruments, dict(around.config.items())
    return tvm.transform.PassContext(max(around.opt_level, 3), *settings)


def _is_static(mod: tvm.IRModule) -> bool:
    """Whether the graph executor can run a typed module."""
    functions = [function for function in mod.functions.values() if not belongs_to_a_backend(function)]
    if len(functions) > 1:
        return False
    return is_static(Graph(mod["main"]))
