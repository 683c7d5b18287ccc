"""What passes did: for each rule its matches, its rewrites, and its refusals with reason and place."""

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """One match of a rule; `reason` is empty where it was rewritten."""

    rule: str
    location: str
    reason: str = ""


@dataclass
class PassReport:
    """What one run of one pass did."""

    name: str
    rules: list
    rewrites: list = field(default_factory=list)
    refusals: list = field(default_factory=list)

    @property
    def matches(self):
        """Every match: what was rewritten and what was refused."""
        return self.rewrites + self.refusals

    def rewrote(self, rule, location):
        self.rewrites.append(Outcome(type(rule).__name__, location))

    def refused(self, rule, location, reason):
        self.refusals.append(Outcome(type(rule).__name__, location, reason))

    def forget_refusals(self):
        """A refusal counts only if it still stands after the last round."""
        self.refusals.clear()

    def __str__(self):
        return str(Report([self]))


@dataclass
class Report:
    """What a pipeline did, pass by pass; prints as a table."""

    passes: list = field(default_factory=list)
    module: object = None  # the module the pipeline gave

    def __rich__(self):
        table = Table("pass", "rule", "matches", "rewritten", "refused, and why")
        for report in self.passes:
            for rule in report.rules:
                rewrites = [outcome for outcome in report.rewrites if outcome.rule == rule]
                refusals = [outcome for outcome in report.refusals if outcome.rule == rule]
                reasons = [f"{outcome.location or '?'}: {outcome.reason}" for outcome in refusals]
                table.add_row(
                    report.name,
                    rule,
                    str(len(rewrites) + len(refusals)),
                    str(len(rewrites)),
                    "\n".join(reasons),
                )
        return table

    def __str__(self):
        console = Console(width=140, color_system=None)
        with console.capture() as capture:
            console.print(self.__rich__())
        return capture.get().rstrip()


_listeners: ContextVar = ContextVar("listeners", default=())


def publish(report):
    """Hand a finished pass report to whoever is recording."""
    for listener in _listeners.get():
        listener.passes.append(report)


@contextlib.contextmanager
def recording():
    """Collect in a Report what every pass does inside the block."""
    report = Report()
    token = _listeners.set((*_listeners.get(), report))
    try:
        yield report
    finally:
        _listeners.reset(token)
