"""Writes docs/operators_of_onnx.md: `python -m tests.conformance.onnx_page [--stock]`, in some minutes.

With `--stock`, TVM's own importer is run on the same cases first, and what it has right is counted anew; that
takes longer, and is kept in a file between times.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import onnx

from frontends import from_onnx
from tests.conformance.isolated import Died, each
from tests.conformance.onnx_cases import cases
from tests.conformance.outcome import Outcome

from tvm import relay

ONNX = "1.16.2"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators_of_onnx.md"
STOCK = Path(__file__).with_name("onnx_stock.json")
SECONDS = 300  # for a case


def outcomes(import_=lambda model: from_onnx(model)[0]):
    """{case's name: Outcome} of all cases."""
    found = each(lambda case: case.outcome(import_), cases(), SECONDS)
    return {
        case.name: Outcome("crash", f"the process ended: {outcome}") if isinstance(outcome, Died) else outcome
        for case, outcome in zip(cases(), found)
    }


def page(outcomes):
    """The text of the page."""
    operators = {case.name: case.operator for case in cases()}
    kinds = defaultdict(Counter)
    for name, outcome in outcomes.items():
        kinds[operators[name]][outcome.kind] += 1
    stock = json.loads(STOCK.read_text()) if STOCK.exists() else {}
    total = sum((Counter(kind) for kind in kinds.values()), Counter())
    parts = [
        "# Operators of ONNX",
        "Written by `python -m tests.conformance.onnx_page` from ONNX's own tests of single operators, those "
        f"with tensors in and out of onnx {ONNX}, on LLVM after `default_pipeline()`. What is not right is "
        f"refused by `ImportFailure`. Of {sum(total.values())} cases {total['right']} are right"
        + (f"; by TVM's own importer {sum(stock.values())} are." if stock else "."),
        _table(kinds, stock),
        "## What is refused",
        _refusals(outcomes, operators),
    ]
    return "\n\n".join(parts) + "\n"


def _table(kinds, stock):
    rows = []
    for operator, counts in sorted(kinds.items()):
        by_stock = stock.get(operator, 0) if stock else ""
        cells = [operator, sum(counts.values()), counts["right"], by_stock, counts["refused"] or ""]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    heads = "| operator | cases | right | right by TVM's own | refused |"
    return "\n".join([heads, "|---|---|---|---|---|", *rows])


def _refusals(outcomes, operators):
    """{operator: reason: cases}, as a list."""
    found = defaultdict(list)
    for name, outcome in outcomes.items():
        if outcome.kind != "right":
            found[operators[name], _general(outcome.reason)].append(name[len("test_") :])
    rows = [
        f"| {operator} | {reason} | {', '.join(sorted(names))} |"
        for (operator, reason), names in sorted(found.items())
    ]
    return "\n".join(["| operator | reason | cases |", "|---|---|---|", *rows])


def _general(reason):
    """A message without the names of this one model."""
    reason = re.sub(r"^the node '[^']*' \(([^)]*)\) cannot be converted: ", r"\1: ", reason)
    return re.sub(r"'[^']*'", "'…'", reason).replace("|", r"\|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", action="store_true", help="count anew what TVM's own importer has right")
    if parser.parse_args().stock:
        operators = {case.name: case.operator for case in cases()}
        found = outcomes(lambda model: relay.frontend.from_onnx(model)[0])
        right = Counter(operators[name] for name, outcome in found.items() if outcome.kind == "right")
        STOCK.write_text(json.dumps(dict(sorted(right.items())), indent=0) + "\n")
    PAGE.write_text(page(outcomes()), encoding="utf-8")


if __name__ == "__main__":
    assert onnx.__version__ == ONNX, f"the page is of onnx {ONNX}"
    main()
