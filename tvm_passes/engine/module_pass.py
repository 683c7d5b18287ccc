"""What every pass of this project is: a TVM pass with a name, which is verified, recorded and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topi_ext.quiet import quiet

import tvm
from tvm.ir.transform import ModulePass, PassInfo, _ffi_transform_api

from . import verify
from .report import PassReport, publish

Transform = Callable[[tvm.IRModule, PassReport], tvm.IRModule]


class Pass(ModulePass):
    """A pass over a module, to be derived from; a pass made of rules derives from `RulePass`.

    `transform` gives the new module and writes into the report what it did and what it refused, and why.
    It is no method: TVM keeps it for as long as it keeps the pass, and with it whatever it refers to.
    `rules` names what the report tells apart, by default the pass alone.
    """

    keeps_types = True  # of all functions

    def __init__(self, transform: Transform, rules: Iterable[str] = ()) -> None:
        name, keeps_types = type(self).__name__, self.keeps_types
        names = list(rules) or [name]
        last: list[PassReport] = []

        def run(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
            report = PassReport(name, names)
            with quiet():
                result = transform(mod, report)
                verify.check(mod, result, name, keeps_types)
            last[:] = [report]
            publish(report)
            return result

        self.__init_handle_by_constructor__(
            _ffi_transform_api.MakeModulePass, run, PassInfo(0, name, [], False)
        )
        self._last = last

    @property
    def report(self) -> PassReport | None:
        """What the pass did the last time it ran, or None before."""
        return self._last[0] if self._last else None
