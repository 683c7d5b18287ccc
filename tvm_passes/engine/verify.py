"""A debug switch: check the module after every pass, and name the pass that broke it.

Set `TVM_PASSES_VERIFY=1` in the environment, or call `tvm_passes.verify_each_pass()`.
"""

from __future__ import annotations

import os

import tvm
from tvm import relay, tir
from tvm.ir import TensorType, TupleType, structural_equal

_wanted = os.environ.get("TVM_PASSES_VERIFY", "0") not in ("", "0")


def verify_each_pass(wanted: bool = True) -> None:
    """Check every pass's result from now on: well formed, and of the same type.

    A dynamic dimension may become static.
    """
    global _wanted
    _wanted = wanted


class PassBrokeModule(RuntimeError):
    """A pass returned an invalid module."""


def check(before: tvm.IRModule, after: tvm.IRModule, name: str, keeps_types: bool) -> None:
    """Raise PassBrokeModule if the switch is on and `after` is not a sound result for `before`."""
    if not _wanted:
        return
    before, after = relay.transform.InferType()(before), relay.transform.InferType()(after)
    for variable, function in before.functions.items():
        if not isinstance(function, relay.Function):
            continue
        result = after[variable.name_hint]
        if not relay.analysis.well_formed(result):
            raise PassBrokeModule(f"{name} left @{variable.name_hint} not well formed")
        old, new = function.checked_type, result.checked_type
        if not keeps_types:
            continue
        if not _same_or_better_known(old.ret_type, new.ret_type) or not structural_equal(
            old.arg_types, new.arg_types
        ):
            raise PassBrokeModule(f"{name} changed the type of @{variable.name_hint}: {old} became {new}")


def _same_or_better_known(old: relay.Type, new: relay.Type) -> bool:
    if isinstance(old, TupleType) and isinstance(new, TupleType):
        pairs = zip(old.fields, new.fields)
        return len(old.fields) == len(new.fields) and all(_same_or_better_known(*pair) for pair in pairs)
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        dims = zip(old.shape, new.shape)
        same_rank = len(old.shape) == len(new.shape) and old.dtype == new.dtype
        return same_rank and all(isinstance(was, tir.Any) or structural_equal(was, now) for was, now in dims)
    return structural_equal(old, new, map_free_vars=True)
