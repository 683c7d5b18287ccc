"""The base of every pass of this project: a named TVM pass that is verified, recorded and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topi_ext.quiet import quiet

import tvm
from tvm.ir.transform import ModulePass, PassInfo, _ffi_transform_api

from . import verify
from .report import PassReport, publish

Transform = Callable[[tvm.IRModule, PassReport], tvm.IRModule]


class Pass(ModulePass):
    """The base class of module passes; a pass made of rules derives from `RulePass`.

    `transform` returns the new module and writes to the report what it did, what it refused, and why.
    It is not a method: TVM keeps it alive as long as the pass, with everything that it refers to.
    `rules` names the entries of the report, by default the pass alone.
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
        """What the pass did the last time it ran, or None if it has not run."""
        return self._last[0] if self._last else None
