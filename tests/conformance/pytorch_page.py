"""Writes docs/operators_of_pytorch.md from what came of PyTorch's samples, which is kept in a file.

    python -m tests.conformance.pytorch_page [--dtype D] [--stock] [--from FILE ...]

Runs the samples, of one dtype or all, or takes what `tests.conformance.pytorch --json FILE` has found. CI
holds the samples to that file. With `--stock`, they are those of TVM's own importer, and are counted.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from pathlib import Path

from frontends._pytorch.operators.converter import INSTEAD
from tests.conformance.pytorch import try_samples
from tests.conformance.pytorch_samples import DTYPES, Sample, samples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators_of_pytorch.md"
OURS = Path(__file__).with_name("pytorch_outcomes.json")
STOCK = Path(__file__).with_name("pytorch_stock.json")
Outcomes = dict[str, list[str]]  # a sample's name: the kind of its outcome, and the reason


def read(path: Path = OURS) -> Outcomes:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(outcomes: Outcomes, path: Path = OURS) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(outcomes.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def run(chosen: list[Sample], stock: bool = False) -> Outcomes:
    found = ((result.sample, result.outcome) for result in try_samples(chosen, stock))
    return {sample.name: [outcome.kind, general(outcome.reason)] for sample, outcome in found}


def of_run(path: Path) -> Outcomes:
    """What `tests.conformance.pytorch --json` has written."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        Sample(operator, dtype, number).name: [kind, general(reason)]
        for operator, dtype, number, kind, reason in rows
    }


def general(reason: str) -> str:
    """A refusal without the name of the model and the place in its source, which here are those of a test."""
    reason = re.sub(r"^TVM cannot import Call(, at|:) ", "", reason.replace(f": {INSTEAD}", ""))
    reason = re.sub(
        r"^(torch cannot trace) Call (with inputs of .*), at \S+\(\d+\): \S+:", r"\1 it \2:", reason
    )
    return re.sub(r" \([^()]*\(\d+\): [\w<>]+\)", "", reason)


def page(outcomes: Outcomes, stock: Outcomes) -> str:
    parts = [
        "# Operators of PyTorch",
        "Written by `python -m tests.conformance.pytorch_page` from PyTorch's own samples of its operators, "
        "those with tensors in and out, and from samples of torchvision's, "
        "on LLVM after `default_pipeline()`. What is not right is refused by "
        "`ImportFailure`.",
        _counts(outcomes, stock),
        _table(outcomes),
        "## What is refused",
        _refusals(outcomes),
    ]
    return "\n\n".join(parts) + "\n"


def _counts(outcomes: Outcomes, stock: Outcomes) -> str:
    rows = ["| dtype | samples | right | refused | right by TVM's own importer |", "|---|---|---|---|---|"]
    for dtype in DTYPES:
        kinds = collections.Counter(found[0] for name, found in outcomes.items() if _split(name)[1] == dtype)
        theirs = [found[0] for name, found in stock.items() if _split(name)[1] == dtype]
        by_stock = theirs.count("right") if theirs else ""
        rows.append(
            f"| {dtype} | {sum(kinds.values())} | {kinds['right']} | {kinds['refused']} | {by_stock} |"
        )
    return "\n".join(rows)


def _table(outcomes: Outcomes) -> str:
    counts: dict[str, dict[str, collections.Counter]] = {}
    for name, (kind, _) in outcomes.items():
        operator, dtype, _number = _split(name)
        counts.setdefault(operator, {}).setdefault(dtype, collections.Counter())[kind] += 1
    rows = [f"| operator | {' | '.join(DTYPES)} |", "|---|" + "---|" * len(DTYPES)]
    for operator, by_dtype in sorted(counts.items()):
        cells = (_cell(by_dtype.get(dtype, collections.Counter())) for dtype in DTYPES)
        rows.append(f"| {operator} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(kinds: collections.Counter) -> str:
    return ", ".join(kind if len(kinds) == 1 else f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _refusals(outcomes: Outcomes) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for name, (kind, reason) in sorted(outcomes.items()):
        if kind != "right":
            operator, dtype, _ = _split(name)
            dtypes = found.setdefault((operator, reason.replace("|", r"\|")), [])
            dtypes += [dtype] if dtype not in dtypes else []
    rows = [f"| {operator} | {', '.join(dtypes)} | {why} |" for (operator, why), dtypes in found.items()]
    return "\n".join(["| operator | dtype | reason |", "|---|---|---|", *rows])


def sample_of(name: str) -> Sample:
    operator, dtype, number = _split(name)
    return Sample(operator, dtype, int(number))


def _split(name: str) -> tuple[str, str, str]:
    """Operator, dtype and number of a sample, from its name."""
    operator, dtype, number = name.rsplit(" ", 2)
    return operator, dtype, number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, help="by default all")
    parser.add_argument("--stock", action="store_true", help="count what TVM's own importer has right")
    parser.add_argument("--from", nargs="+", type=Path, help="runs to take instead of another", dest="runs")
    arguments = parser.parse_args()
    path = STOCK if arguments.stock else OURS
    dtypes = [arguments.dtype] if arguments.dtype else DTYPES
    runs = map(of_run, arguments.runs or ())
    for found in runs if arguments.runs else (run(samples(dtype), arguments.stock) for dtype in dtypes):
        ran = {_split(name)[1] for name in found}
        kept = {name: known for name, known in read(path).items() if _split(name)[1] not in ran}
        if arguments.stock:  # only the count is of interest, and messages of TVM are long
            found = {name: [kind, ""] for name, (kind, _) in found.items()}
        write({**kept, **found}, path)
    PAGE.write_text(page(read(OURS), read(STOCK)), encoding="utf-8")


if __name__ == "__main__":
    main()
