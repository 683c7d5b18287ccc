"""Jobs in processes that may crash or hang without harm to the others.

A worker is a fork of this process, so it starts at once with everything imported. It is sent one job at a
time; where no answer comes, the job is to blame.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

MORE = 10  # times the seconds of a job, at most
JOBS_PER_WORKER = 150  # TVM keeps what it has compiled


class _Worker:
    def __init__(self, work: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Any = None
        self.until = self.began = self.seconds = self._cpu = 0.0
        self.done = 0

    def give(self, job: Any, seconds: float) -> None:
        self.job, self.seconds, self.began = job, seconds, time.monotonic()
        self.until, self._cpu = self.began + seconds, self._cpu_seconds()
        self.connection.send(job)

    def hangs(self) -> bool:
        """Whether it has used its time; on a machine that is busy with other things it is given more."""
        left = self.seconds - (self._cpu_seconds() - self._cpu)
        if left <= 0 or time.monotonic() > self.began + MORE * self.seconds:
            return True
        self.until = time.monotonic() + max(1.0, left)
        return False

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def _serve(work: Callable[[Any], Any], connection: Connection) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # what TVM prints, from C++ too
    os.dup2(silent, 2)
    sys.stdout = sys.stderr = open(silent, "w", closefd=False)  # noqa: SIM115  for the life of the process
    while True:
        try:
            job = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            result = work(job)
        except Exception as error:  # of the fuzzer itself
            result = f"crashed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        connection.send(result)


def run(
    work: Callable[[Any], Any], jobs: Iterator[Any], processes: int, seconds: Callable[[Any], float]
) -> Iterator[tuple[Any, Any]]:
    """Each job with its result, "crashed: how", or "hung", in the order they end; a job None is none."""
    workers: list[_Worker] = []

    def feed(worker: _Worker) -> None:
        job = next(jobs, None)
        if job is None or worker.done >= JOBS_PER_WORKER:
            workers.remove(worker)
            worker.stop()
        if job is not None:
            if worker not in workers:
                worker = _Worker(work)
                workers.append(worker)
            worker.give(job, seconds(job))

    try:
        for _ in range(processes):
            workers.append(_Worker(work))
            feed(workers[-1])
        while workers:
            first = min(worker.until for worker in workers)
            ready = wait([worker.connection for worker in workers], max(0.0, first - time.monotonic()))
            for worker in list(workers):
                job, result = worker.job, None
                if worker.connection in ready:
                    try:
                        result = worker.connection.recv()
                        worker.done += 1
                    except (EOFError, ConnectionResetError):
                        worker.process.join()
                        result = f"crashed: exit status {worker.process.exitcode}"
                elif time.monotonic() >= worker.until and worker.hangs():
                    result = "hung"
                if result is None:
                    continue
                if isinstance(result, str):
                    workers.remove(worker)
                    worker.stop()
                    worker = _Worker(work)
                    workers.append(worker)
                yield job, result
                feed(worker)
    finally:
        for worker in workers:
            worker.stop()
