"""Processes for devices: the same results as by threads, and an end of all of them, whatever happens."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.batch.seen import Seen
from tests.batch.tables import reasons, rows
from tvm_passes import batch
from tvm_passes.batch import BatchError, job, processes
from tvm_passes.batch.decode import MAX_PIXELS
from tvm_passes.batch.figures import Figures
from tvm_passes.batch.process import Options
from tvm_passes.batch.processes import run_in_processes
from tvm_passes.batch.sources import items_of

import tvm

SECONDS = 60


def options(folder, count=2):
    return [Options(folder, "cpu", "auto", MAX_PIXELS, 1)] * count


def endless(photos):
    """The same images again and again, until someone has seen enough."""
    number = 0
    while True:
        for item in items_of(photos):
            yield item._replace(id=f"{number} {item.id}")
        number += 1


def have_ended(processes):
    deadline = time.monotonic() + SECONDS
    while any(os.path.exists(f"/proc/{each}") for each in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_a_job_is_that_of_threads(photos, detector_folder, tmp_path, monkeypatch):
    folder = detector_folder("raw")
    one = batch.detect(photos, tmp_path / "one" / "detections.parquet", folder)
    monkeypatch.setattr(job, "_is_for_gpus", lambda _: True)
    monkeypatch.setattr(job, "_gpus_here", lambda _: ["cpu"])
    two = batch.detect(photos, tmp_path / "two" / "detections.parquet", folder, gpus=1, processes=2)
    assert (two.images, two.errors, two.bound is None) == (one.images, one.errors, False)
    assert rows(two.detections) == rows(one.detections)
    assert reasons(two.error_table) == reasons(one.error_table)


def test_as_many_for_a_gpu_as_its_memory_allows(monkeypatch):
    monkeypatch.setattr(tvm.runtime.Device, "exist", True)
    for memory, number in ((4 * 2**30, 1), (24 * 2**30, 3), (80 * 2**30, 6), (None, 1)):
        monkeypatch.setattr(tvm.runtime.Device, "total_global_memory", memory)
        assert job.processes_of("cuda:1") == number
    assert job.processes_of("cpu") == 1


def test_one_for_a_gpu_that_is_not_there(monkeypatch):
    """Whose absence the detector explains."""
    monkeypatch.setattr(tvm.runtime.Device, "exist", False)
    assert job.processes_of("cuda:0") == 1


def test_all_work_and_end_when_nobody_wants_more(photos, detector_folder):
    figures, found = Seen(), []
    results = run_in_processes(endless(photos), options(detector_folder("encoded")), figures)
    with contextlib.closing(results):
        while len(figures.processes) < 2:
            found.append(next(results))
    assert found and have_ended(figures.processes)


def test_one_that_is_killed_ends_the_job(photos, detector_folder):
    figures = Seen()
    results = run_in_processes(endless(photos), options(detector_folder("encoded")), figures)
    next(results)
    os.kill(next(iter(figures.processes)), signal.SIGKILL)
    with pytest.raises(BatchError, match=r"the process of cpu has ended, with the code -9: .* give --resume"):
        for _ in results:
            pass
    assert have_ended(figures.processes)


def test_an_error_in_a_process_is_that_of_the_job(photos, tmp_path):
    with pytest.raises(BatchError, match="manifest"):
        list(run_in_processes(items_of(photos), options(tmp_path), Figures()))


BROKEN = """
from tvm_passes.batch import process
def broken(*_, **__): raise OSError("no such device")
process.Detector = broken
process.main({})
"""


def test_an_error_of_the_system_is_not_the_end_of_the_job(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START", BROKEN)
    with pytest.raises(BatchError, match="the process of cpu failed: no such device"):
        list(run_in_processes(items_of(photos), options(tmp_path), Figures()))


def test_an_error_of_the_source_ends_all(photos, detector_folder):
    def broken():
        yield from items_of(photos)
        raise BatchError("the tar is damaged")

    with pytest.raises(BatchError, match="the tar is damaged"):
        list(run_in_processes(broken(), options(detector_folder("encoded")), Figures()))


JOB = """
import sys
from tests.batch.seen import Seen
from tests.batch.test_processes import endless, options
from tvm_passes.batch.processes import run_in_processes
figures = Seen()
for result in run_in_processes(endless(sys.argv[1]), options(sys.argv[2]), figures):
    if len(figures.processes) == 2:
        print(*figures.processes, flush=True)
"""


def test_they_end_with_a_job_that_is_killed(photos, detector_folder):
    command = [sys.executable, "-c", JOB, str(photos), str(detector_folder("encoded"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        processes = [int(each) for each in process.stdout.readline().split()]
        process.kill()
    assert len(processes) == 2 and have_ended(processes)
    assert process.returncode == -signal.SIGKILL
