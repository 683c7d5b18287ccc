"""For the virtual machine, TVM looks for operators to fold and lower four times; at last, there are none.

Each time it builds all of `main` again and infers its types, which takes longer the more of it is there: what
allocates memory and computes shapes is most of a network of unknown sizes.
"""

from __future__ import annotations

import tvm
from tvm import relay, tir
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassInfo

LOWER = "FoldConstant", "FuseOps", "LabelOps", "LowerTE"
ALLOCATES = "ManifestAlloc"
LOWERED = "call_lowered"  # until memory is allocated for its results
COPY = "device_copy"  # which TVM fuses to a function of its own, and takes out of it as it lowers it
IS_NOT_COMPUTED = "TNonComputational"


@pass_instrument
class LoweredOnce:
    """Skips these passes where kernels are called already, and there is nothing that they would change."""

    def __init__(self) -> None:
        self.exit_pass_ctx()

    def exit_pass_ctx(self) -> None:
        """Let go of what was compiled; see `TypedOnce`."""
        self._asked: list[relay.Function] = []
        self._names: set[str] = set()

    def should_run(self, mod: tvm.IRModule, info: PassInfo) -> bool:
        if info.name not in (*LOWER, ALLOCATES):
            return True
        functions = list(mod.functions.values())
        if not any(isinstance(function, tir.PrimFunc) for function in functions):
            return True
        names = self._operators([each for each in functions if isinstance(each, relay.Function)])
        return any(map(_is_to_lower, names)) or (info.name == ALLOCATES and LOWERED in names)

    def _operators(self, functions: list[relay.Function]) -> set[str]:
        """The names of those in the Relay functions, remembered as one pass of these follows another."""
        if not _are_same(self._asked, functions):
            # TVM counts those of main alone, but a loop is a function of its own.
            counted = [relay.analysis.list_op_freqs(tvm.IRModule.from_expr(each)) for each in functions]
            self._asked, self._names = functions, {str(name) for names in counted for name in names}
        return self._names


def _are_same(functions: list[relay.Function], others: list[relay.Function]) -> bool:
    return len(functions) == len(others) and all(one.same_as(other) for one, other in zip(functions, others))


def _is_to_lower(name: str) -> bool:
    return name != COPY and not relay.op.get(name).get_attr(IS_NOT_COMPUTED)
