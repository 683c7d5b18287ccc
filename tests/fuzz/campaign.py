"""A run of the fuzzer: models by their seeds, in worker processes, counted."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .check import KINDS, TO_MEND, Result
from .explain import RULES
from .pool import run

REASONS = {rule.name: rule.reason for rule in RULES} | {
    "several": "the rules together",
    "oracles differ": "PyTorch and ONNX Runtime differ, and each output is what one of them says",
}
SECONDS_TO_SHRINK = 600


class Job(NamedTuple):
    seed: int
    with_stock: bool
    shrink: bool = False  # what is known to be wrong


class Source(Protocol):
    """Where models come from. Its methods but `keep` run in workers."""

    def check(self, job: Job) -> Result: ...

    def shrink(self, job: Job) -> str:
        """Makes a model that is wrong small, keeps it, and says where."""

    def keep(self, job: Job, kind: str) -> str:
        """Keeps a model that must not be run."""


class Campaign:
    def __init__(self, options: argparse.Namespace) -> None:
        for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        self.options = options
        self.source: Source = _source(options)
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.stock: Counter[tuple[str, str]] = Counter()
        self.compiled = 0
        self.seconds = 0.0
        self.to_mend: list[str] = []
        self._to_shrink: deque[Job] = deque()
        self._console = Console()

    def run(self) -> None:
        options = self.options
        began = time.monotonic()
        until = began + 60 * options.minutes if options.minutes else math.inf
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("models", total=options.models)
            for job, result in run(self._work, self._jobs(until), options.jobs, self._limit):
                self._count(job, result)
                done = sum(self.counts.values())
                progress.update(task, completed=done, description=self._so_far())
                if progress.disable and not job.shrink and done % 100 == 0:
                    self._console.print(f"{done} models, {time.monotonic() - began:.0f} s: {self._so_far()}")
        self.seconds = time.monotonic() - began

    def _jobs(self, until: float) -> Iterator[Job | None]:
        """None where there is nothing to do until another job is done."""
        options = self.options
        count = itertools.count() if options.models is None else range(options.models)
        for number in count:
            while self._to_shrink:
                yield self._to_shrink.popleft()
            if time.monotonic() > until:
                break
            yield Job(options.seed + number, options.stock > 0 and number % options.stock == 0)
        while True:
            yield self._to_shrink.popleft() if self._to_shrink else None

    def _work(self, job: Job) -> Any:
        return self.source.shrink(job) if job.shrink else self.source.check(job)

    def _limit(self, job: Job) -> float:
        return float(SECONDS_TO_SHRINK if job.shrink else self.options.seconds)

    def _count(self, job: Job, result: Any) -> None:
        if job.shrink:
            self._say(f"    seed {job.seed} is kept as {result}")
            return
        if isinstance(result, str):  # what the pool says of a worker that did not answer
            kind, _, reason = result.partition(": ")
            result = Result(kind, reason)
            self._say(f"    seed {job.seed} is kept as {self.source.keep(job, kind)}")
        self.counts[result.kind] += 1
        self.compiled += result.compiled
        if result.kind != "right":
            self.reasons[result.kind, result.reason] += 1
        if result.stock:
            self.stock[result.kind, result.stock] += 1
        if result.kind in TO_MEND:
            line = f"seed {job.seed}: {result.kind} after {result.pipeline}: {result.reason}"
            self.to_mend.append(line)
            self._say(f"{line} (stock: {result.stock})")
            if result.kind in ("different", "error"):
                self._to_shrink.append(job._replace(shrink=True))

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _so_far(self) -> str:
        return ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS if self.counts[kind])

    def print_summary(self) -> None:
        total = sum(self.counts.values())
        options = self.options
        what = "idioms of our own" if options.own else "networks of NNSmith"
        rate = f"{total / max(self.seconds, 1):.1f} a second, {self.compiled} modules compiled"
        title = (
            f"{total} {what}, seeds {options.seed} to {options.seed + total - 1}, {options.target}: {rate}"
        )
        table = Table(title=title, title_justify="left")
        for column in ("", "models", "stock TVM, where it was asked"):
            table.add_column(column)
        for kind in KINDS:
            table.add_row(kind, str(self.counts[kind]), self._stock(kind), end_section=True)
            of_kind = [(reason, count) for (one, reason), count in self.reasons.most_common() if one == kind]
            for reason, count in of_kind:
                meaning = REASONS.get(reason)
                table.add_row(f"  {reason}: {meaning}" if meaning else f"  {reason}", str(count), "")
        self._console.print(table)
        for line in self.to_mend:
            self._say(line)

    def _stock(self, kind: str) -> str:
        return ", ".join(f"{count} {said}" for (one, said), count in self.stock.most_common() if one == kind)


def _source(options: argparse.Namespace) -> Source:
    import torch

    torch.set_num_threads(1)
    if options.own:
        from .own import OwnSource

        return OwnSource(options.found, options.target)
    from .general import GeneralSource

    return GeneralSource(options.found, options.target, options.frontend)
