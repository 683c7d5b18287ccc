"""While TVM compiles, it infers types again and again; a third of these runs would change nothing."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassInfo

NAME = "InferType"


@pass_instrument
class TypedOnce:
    """Skips a run of InferType on the functions that the last one has made.

    Functions are immutable while something else holds them, as this does: their types stay what they are. It
    is for one compilation, since it also holds their constants.
    """

    def __init__(self) -> None:
        self._typed: dict[int, int] = {}
        self._held: Any = None

    def should_run(self, mod: tvm.IRModule, info: PassInfo) -> bool:
        return info.name != NAME or _functions(mod) != self._typed

    def run_after_pass(self, mod: tvm.IRModule, info: PassInfo) -> None:
        if info.name == NAME:
            self._typed, self._held = _functions(mod), mod.functions


def _functions(mod: tvm.IRModule) -> dict[int, int]:
    """The addresses of its functions, which are theirs while they are held, by those of their variables."""
    return {variable.handle.value: function.handle.value for variable, function in mod.functions.items()}
