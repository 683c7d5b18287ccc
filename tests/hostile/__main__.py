"""`python -m tests.hostile --mutations 10000 --seed 1`: how the importer stands hostile files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.hostile.campaign import FOUND, Campaign, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--compile-every",
        type=int,
        default=1,
        metavar="N",
        help="compile and run each Nth of those that are imported; 0: only import",
    )
    parser.add_argument("--keep", type=Path, default=FOUND, help="the folder for files that are bad")
    args = parser.parse_args()
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # A thread that refreshes could hold a lock when a process is forked.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("mutations", total=args.mutations)

        def show(campaign: Campaign) -> None:
            progress.update(task, advance=1, description=f"mutations ({len(campaign.bad)} bad)")
            progress.refresh()

        campaign = run(args.mutations, args.seed, args.workers, args.compile_every, args.keep, show)
    report(campaign, console)
    return 1 if campaign.bad else 0


def report(campaign: Campaign, console: Console) -> None:
    outcomes = Table("stage", "outcome", "files")
    for (stage, kind), count in sorted(campaign.counts.items()):
        outcomes.add_row(stage, kind, str(count))
    console.print(outcomes)
    reasons = Table("refused because", "files")
    for reason, count in campaign.reasons.most_common(60):
        reasons.add_row(reason, str(count))
    console.print(reasons)
    console.print(f"slowest import: {campaign.slowest[0]:.1f} s, {campaign.slowest[1]}", markup=False)
    for name, outcome in campaign.bad:
        console.print(
            f"{outcome.kind} at {outcome.stage}: {name}: {outcome.message}", markup=False, soft_wrap=True
        )


if __name__ == "__main__":
    sys.exit(main())
