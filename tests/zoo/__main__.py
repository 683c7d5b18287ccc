"""Import models of packages that are not ours, and say what becomes of them: `python -m tests.zoo`.

    pip install -e ".[test,zoo]"
    python -m tests.zoo --run --arch sm_90 --page docs/models.md

Each runs in a process of its own. Those of packages that are not installed are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.zoo.models import MODELS
from tests.zoo.page import COLUMNS, cells, page

MINUTES = 10  # that a model may take


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="models with this in their name or package")
    parser.add_argument("--run", action="store_true", help="compare what is found on an image, on the CPU")
    parser.add_argument("--arch", help="compile float16 for CUDA on this architecture, such as sm_90")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time; %(default)s")
    parser.add_argument("--page", type=Path, help="write the table to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        from tests.zoo.outcome import outcome_of

        args.to.write_text(json.dumps(outcome_of(args.one, args.run, args.arch)))
        return
    chosen = [
        name
        for name, each in MODELS.items()
        if not args.only or any(text in f"{each.package} {name}" for text in args.only)
    ]
    outcomes = []
    with ThreadPoolExecutor(args.jobs) as pool:
        tried = pool.map(lambda name: in_a_process(name, args.run, args.arch), chosen)
        for outcome in track(tried, "Models", total=len(chosen)):
            outcomes.append(outcome)
            if args.page:  # as far as it is, since all of them take an hour
                args.page.write_text(page(outcomes), encoding="utf-8")
    table = Table(*COLUMNS)
    for outcome in outcomes:
        table.add_row(*cells(outcome))
    Console().print(table)


def in_a_process(name, run, arch=None, minutes=MINUTES):
    """The outcome of a model; a crash or a hang is one, too."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "tests.zoo", "--one", name, "--to", str(to)]
        command += ["--run"] * run + (["--arch", arch] if arch else [])
        try:
            done = subprocess.run(command, timeout=60 * minutes, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return {"name": name, "imported": f"took more than {minutes:g} minutes"}
        if to.exists():
            return json.loads(to.read_text())
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return {"name": name, "imported": f"crashed: {lines[-1]}"}


if __name__ == "__main__":
    main()
