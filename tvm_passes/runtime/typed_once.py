"""While TVM compiles, it infers types again and again; half of these runs would change nothing."""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relay
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassInfo

from ..engine.graph import Graph

NAME = "InferType"


@pass_instrument
class TypedOnce:
    """Skips a run of InferType on functions that the last one has made, or was given with types.

    Only those of Relay count: kernels, which TVM adds and changes while it lowers, have no types to infer.
    Functions are immutable while something else holds them, as this does: their types stay what they are. It
    is for one compilation, since it also holds their constants.
    """

    def __init__(self) -> None:
        self.exit_pass_ctx()

    def exit_pass_ctx(self) -> None:
        """Let go of what was compiled: TVM and this hold each other, and are never freed."""
        self._made: dict[int, int] = {}
        self._typed: dict[int, relay.Function] = {}  # by their addresses

    def should_run(self, mod: tvm.IRModule, info: PassInfo) -> bool:
        if info.name != NAME:
            return True
        given = _addresses(mod)
        if given == self._made or self._stand_alone(given.values()):
            return False
        # TVM's patterns add one function at a time to the module that they were given, to infer its types:
        # without those of the module, each of them would be inferred again after each pattern.
        self._typed = {each: self._typed[each] for each in given.values() if each in self._typed}
        return True

    def run_after_pass(self, mod: tvm.IRModule, info: PassInfo) -> None:
        if info.name == NAME:
            self._made = _addresses(mod)
            self._typed.update((function.handle.value, function) for _, function in _functions(mod))

    def _stand_alone(self, given: Collection[int]) -> bool:
        """Whether these have types already, which no other function can change, whatever their names are."""
        return all(each in self._typed for each in given) and not any(
            _calls_by_name(self._typed[each]) for each in given
        )


def _functions(mod: tvm.IRModule) -> list[tuple[relay.GlobalVar, relay.Function]]:
    return [each for each in mod.functions.items() if isinstance(each[1], relay.Function)]


def _addresses(mod: tvm.IRModule) -> dict[int, int]:
    """Those of the Relay functions, by those of their variables."""
    return {variable.handle.value: function.handle.value for variable, function in _functions(mod)}


def _calls_by_name(function: relay.Function) -> bool:
    return any(isinstance(node, relay.GlobalVar) for node in Graph(function).nodes)
