"""What passes did: for each rule its matches, its rewrites, and its refusals with reason and location."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
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
    rules: list[str]
    rewrites: list[Outcome] = field(default_factory=list)
    refusals: list[Outcome] = field(default_factory=list)

    @property
    def matches(self) -> list[Outcome]:
        """Every match: what was rewritten and what was refused."""
        return self.rewrites + self.refusals

    def rewrote(self, rule: str, location: str) -> None:
        self.rewrites.append(Outcome(rule, location))

    def refused(self, rule: str, location: str, reason: str) -> None:
        self.refusals.append(Outcome(rule, location, reason))

    def forget_refusals(self) -> None:
        """Drop all refusals: one counts only if it still stands after the last round."""
        self.refusals.clear()

    def __str__(self) -> str:
        return str(Report([self]))


@dataclass
class Report:
    """What a pipeline did, pass by pass; prints as a table."""

    passes: list[PassReport] = field(default_factory=list)
    module: Any = None  # the module that the pipeline returned

    def say_refusals_once(self) -> None:
        """Keep what several runs of a pass refused in the last of them only: it is one refusal."""
        later: set[tuple[str, Outcome]] = set()
        for report in reversed(self.passes):
            refused = {(report.name, outcome) for outcome in report.refusals}
            report.refusals = [each for each in report.refusals if (report.name, each) not in later]
            later |= refused

    def __rich__(self) -> Table:
        table = Table()
        for title in ("pass", "rule", "matches", "rewritten", "refused, and why"):
            table.add_column(title, overflow="fold")
        matched = {outcome.rule for report in self.passes for outcome in report.matches}
        for report in self.passes:
            for rule in report.rules:
                rewrites = [outcome for outcome in report.rewrites if outcome.rule == rule]
                refusals = [outcome for outcome in report.refusals if outcome.rule == rule]
                if not rewrites and not refusals:
                    continue
                counts = len(rewrites) + len(refusals), len(rewrites)
                table.add_row(report.name, rule, *map(str, counts), escape(_reasons(refusals)))
        idle = [rule for report in self.passes for rule in report.rules if rule not in matched]
        if idle:
            table.caption = f"No match: {', '.join(dict.fromkeys(idle))}"
        return table

    def __str__(self) -> str:
        return table_as_text(self.__rich__())


def table_as_text(table: Table) -> str:
    """A table as it is printed, of a width that does not depend on the terminal."""
    console = Console(width=140, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()


def _reasons(refusals: list[Outcome]) -> str:
    """Each reason once, with the locations that it was given for; "?" is one that is not known."""
    places: dict[str, list[str]] = {}
    for outcome in refusals:
        places.setdefault(outcome.reason, []).append(outcome.location or "?")
    return "\n".join(f"{', '.join(_counted(where))}: {reason}" for reason, where in places.items())


def _counted(where: list[str]) -> list[str]:
    """The places that are known, and how many are not."""
    known, unknown = [place for place in where if place != "?"], where.count("?")
    if unknown:
        known.append("?" if unknown == 1 else f"{unknown} times ?")
    return known


_listeners: ContextVar[tuple[Report, ...]] = ContextVar("listeners", default=())


def publish(report: PassReport) -> None:
    """Hand a finished pass report to whoever is recording."""
    for listener in _listeners.get():
        listener.passes.append(report)


@contextlib.contextmanager
def recording() -> Iterator[Report]:
    """Collect in a Report what every pass does inside the block."""
    report = Report()
    token = _listeners.set((*_listeners.get(), report))
    try:
        yield report
    finally:
        _listeners.reset(token)
