"""A debug switch: look at the module after every pass, and blame the pass that broke it.

Set `TVM_PASSES_VERIFY=1` in the environment, or call `tvm_passes.verify_each_pass()`.
"""

import os

from tvm import relay
from tvm.ir import structural_equal

_wanted = os.environ.get("TVM_PASSES_VERIFY", "0") not in ("", "0")


def verify_each_pass(wanted=True):
    """Check every pass's result from now on: well formed, types infer, same output types."""
    global _wanted
    _wanted = wanted


class PassBrokeModule(RuntimeError):
    """A pass gave a module that does not hold together."""


def check(before, after, name):
    """Raise PassBrokeModule if the switch is on and `after` is not a sound successor of `before`."""
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
        if not structural_equal(old, new, map_free_vars=True):
            raise PassBrokeModule(f"{name} changed the type of @{variable.name_hint}: {old} became {new}")
