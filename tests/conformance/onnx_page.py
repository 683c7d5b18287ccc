"""Writes docs/operators_of_onnx.md: `python -m tests.conformance.onnx_page [--stock]`, in some minutes.

Runs ONNX's own tests of single operators, keeps what came of each in a file, and writes the page from it. CI
holds the tests to that file. With `--stock`, TVM's own importer is run and counted.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import onnx

import tvm_passes
from frontends import from_onnx
from tests.conformance.isolated import Died, each
from tests.conformance.onnx_cases import Case, cases
from tests.conformance.outcome import Outcome
from tests.conformance.pytorch_page import read, write
from tests.helpers import quick, runner

from tvm import relay

ONNX = "1.16.2"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators_of_onnx.md"
OURS = Path(__file__).with_name("onnx_outcomes.json")  # {case: [operator, kind, reason]}
STOCK = Path(__file__).with_name("onnx_stock.json")  # {operator: how many are right}
SECONDS = 100  # for a case


def run(chosen: list[Case], import_=lambda model: from_onnx(model)[0]) -> dict[str, list[str]]:
    """{case's name: [operator, kind, reason]}, each case in a process that it may take down."""
    found = each(lambda case: case.outcome(import_, compiled), chosen, SECONDS)
    outcomes = (
        Outcome("crash", f"the process ended: {outcome}") if isinstance(outcome, Died) else outcome
        for outcome in found
    )
    return {
        case.name: [case.operator, outcome.kind, _general(outcome.reason)]
        for case, outcome in zip(chosen, outcomes)
    }


def compiled(mod):
    return runner(tvm_passes.default_pipeline()(mod), quick())


def _general(reason: str) -> str:
    """A message without the names of this one model."""
    reason = re.sub(r"^the node '[^']*' \(([^)]*)\) cannot be converted: ", r"\1: ", reason)
    reason = re.sub(r"the nodes? '[^']*' \(([^)]*)\)", r"\1", reason)
    return re.sub(r"'[^']*'", "'…'", reason)


def page(outcomes: dict[str, list[str]], stock: dict[str, int]) -> str:
    """The text of the page."""
    kinds: dict[str, Counter] = defaultdict(Counter)
    for operator, kind, _reason in outcomes.values():
        kinds[operator][kind] += 1
    right = sum(counts["right"] for counts in kinds.values())
    theirs = f"; by TVM's own importer {sum(stock.values())} are" if stock else ""
    parts = [
        "# Operators of ONNX",
        "Written by `python -m tests.conformance.onnx_page` from ONNX's own tests of single operators, those "
        f"with tensors in and out of onnx {ONNX}, on LLVM after `default_pipeline()`. What is not right is "
        f"refused by `ImportFailure`. Of {len(outcomes)} cases {right} are right{theirs}.",
        _table(kinds, stock),
        "## What is refused",
        _refusals(outcomes),
    ]
    return "\n\n".join(parts) + "\n"


def _table(kinds: dict[str, Counter], stock: dict[str, int]) -> str:
    heads = ["operator", "cases", "right", "refused", *(["right by TVM's own importer"] if stock else [])]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for operator, counts in sorted(kinds.items()):
        cells = [sum(counts.values()), counts["right"], counts["refused"]]
        cells += [stock.get(operator, 0)] if stock else []
        rows.append(f"| {operator} | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _refusals(outcomes: dict[str, list[str]]) -> str:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (operator, kind, reason) in sorted(outcomes.items()):
        if kind != "right":
            found[operator, reason.replace("|", r"\|")].append(name[len("test_") :])
    rows = [
        f"| {operator} | {why} | {', '.join(names)} |" for (operator, why), names in sorted(found.items())
    ]
    return "\n".join(["| operator | reason | cases |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", action="store_true", help="count what TVM's own importer has right")
    if parser.parse_args().stock:
        found = run(cases(), lambda model: relay.frontend.from_onnx(model)[0])
        right = Counter(operator for operator, kind, _ in found.values() if kind == "right")
        STOCK.write_text(json.dumps(dict(sorted(right.items())), indent=0) + "\n", encoding="utf-8")
    else:
        write(run(cases()), OURS)
    PAGE.write_text(page(read(OURS), read(STOCK)), encoding="utf-8")


if __name__ == "__main__":
    assert onnx.__version__ == ONNX, f"the page is of onnx {ONNX}"
    main()
