"""While TVM compiles, it infers types again and again; a third of these runs would change nothing."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relay
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassInfo

NAME = "InferType"


@pass_instrument
class TypedOnce:
    """Skips a run of InferType on the functions that the last one has made.

    Only those of Relay count: kernels, which TVM adds and changes while it lowers, have no types to infer.
    Functions are immutable while something else holds them, as this does: their types stay what they are. It
    is for one compilation, since it also holds their constants.
    """

    def __init__(self) -> None:
        self._typed: dict[int, int] = {}
        self._held: Any = None

    def should_run(self, mod: tvm.IRModule, info: PassInfo) -> bool:
        return info.name != NAME or _addresses(mod) != self._typed

    def run_after_pass(self, mod: tvm.IRModule, info: PassInfo) -> None:
        if info.name == NAME:
            self._typed, self._held = _addresses(mod), mod.functions


def _addresses(mod: tvm.IRModule) -> dict[int, int]:
    """Those of the Relay functions, by those of their variables."""
    return {
        variable.handle.value: function.handle.value
        for variable, function in mod.functions.items()
        if isinstance(function, relay.Function)
    }
