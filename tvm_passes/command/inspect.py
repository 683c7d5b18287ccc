"""`tvm-passes inspect`: show what each pass does to a model, and what it refuses, where and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from topi_ext.bootstrap import tvm_in_use

from .errors import check_can_write, writing
from .graph_page import write_graph_page
from .history import History, Step, apply_and_track, operators
from .progress import say, step
from .text import places
from .work import Work

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .pipelines import prepare
    from .summary import sentences
else:
    from .relax_pipeline import prepare
    from .relax_summary import sentences

OPERATORS = 20  # in the second table, the most changed first
JSON_FORMAT = 1
KINDS = "added", "changed", "removed"  # of nodes, as `history` counts them


def run(args: argparse.Namespace) -> None:
    if args.graph:
        check_can_write(args.graph)
    work = prepare(args)
    with step("Apply the passes") as told:
        history = apply_and_track(work.mod, work.passes, told)
    if args.graph:
        about = {"pipeline": work.pipeline, "target": args.target, "TVM": tvm_in_use.version}
        with writing(args.graph):
            write_graph_page(args.graph, history, work.model.title, about)
        say(f"The graph before and after: {args.graph}")
    said = sentences(work, history)
    if args.json:
        print(json.dumps(as_json(work, history, said), indent=1))
    else:
        console = Console(emoji=False)
        for sentence in said:
            console.print(escape(sentence), highlight=False)
        console.print(as_table(history))


def as_json(work: Work, history: History, said: list[str]) -> dict[str, Any]:
    """Everything as JSON, with every location; `said` is the summary."""
    return {
        "format": JSON_FORMAT,
        "model": work.model.title,
        "pipeline": work.pipeline,
        "target": str(work.target),
        "tvm": tvm_in_use.version,
        "summary": said,
        "operators": {"before": operators(history.before), "after": operators(history.after)},
        "passes": [
            {
                "name": each.name,
                "seconds": round(each.seconds, 3),
                "nodes": {kind: each.counts[kind] for kind in KINDS},
                "rewrites": [
                    {"rule": outcome.rule, "location": outcome.location} for outcome in each.rewrites
                ],
                "refusals": [
                    {"rule": outcome.rule, "location": outcome.location, "reason": outcome.reason}
                    for outcome in each.refusals
                ],
            }
            for each in history.steps
        ],
    }


def as_table(history: History) -> Group:
    """Tables of what the passes did, and of the number of calls of each operator before and after."""
    table = Table()
    for title in ("pass, and its rules", "rewritten", "refused", "where, and why"):
        number = title in ("rewritten", "refused")
        table.add_column(title, overflow="fold", justify="right" if number else "left", no_wrap=number)
    busy, idle = set(), []
    for each in history.steps:
        rows = list(_rows(each))
        for row in rows:
            table.add_row(*map(escape, row))
        table.add_section()
        busy.add(each.name) if rows else idle.append(each.name)
    idle = [name for name in dict.fromkeys(idle) if name not in busy]
    if idle:
        table.caption = f"Nothing to do: {', '.join(idle)}"
    return Group(table, _operators_table(history))


def _rows(each: Step) -> Iterator[tuple[str, str, str, str]]:
    """A row for a pass, with its changes if it has no rules; then a row for each rule that matched."""
    changes = ", ".join(f"{each.counts[kind]} {kind}" for kind in KINDS if each.counts[kind])
    rules = dict.fromkeys(outcome.rule for outcome in each.rewrites + each.refusals)
    if rules or changes:
        yield each.name, "", "", f"nodes: {changes}" if changes else ""
    for rule in rules:
        rewrites = [outcome.location for outcome in each.rewrites if outcome.rule == rule]
        refusals: dict[str, list[str]] = {}
        for outcome in each.refusals:
            if outcome.rule == rule:
                refusals.setdefault(outcome.reason, []).append(outcome.location)
        if rewrites:
            yield f"  {rule}", str(len(rewrites)), "", places(rewrites)
        for reason, where in refusals.items():
            yield f"  {rule}", "", str(len(where)), f"{places(where)}: {reason}"


def _operators_table(history: History) -> Table:
    before, after = operators(history.before), operators(history.after)
    table = Table()
    for title in ("operator", "before", "after"):
        table.add_column(title, justify="left" if title == "operator" else "right")
    changed = [name for name in {*before, *after} if before[name] != after[name]]
    changed.sort(key=lambda name: (-abs(after[name] - before[name]), name))
    ours = [name for name in changed[OPERATORS:] if name.startswith("topi_ext.")]
    for name in (*changed[:OPERATORS], *ours):
        table.add_row(name, str(before[name]), str(after[name]))
    table.add_section()
    shown = {*changed[:OPERATORS], *ours}
    rest = [sum(count for name, count in each.items() if name not in shown) for each in (before, after)]
    table.add_row("others", *map(str, rest))
    table.add_row("all", *(str(sum(each.values())) for each in (before, after)))
    return table
