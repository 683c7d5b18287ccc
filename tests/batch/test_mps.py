"""MPS for processes that share a GPU, by a daemon of the tests, which only notes what it is told."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.batch.networks import painted_detector
from tests.batch.tables import rows
from tvm_passes import batch, runtime
from tvm_passes.batch import mps, processes

FAKE = """#!/bin/sh
[ "$1" = -d ] && exec echo "started for $CUDA_VISIBLE_DEVICES in $CUDA_MPS_PIPE_DIRECTORY" >> {log}
cat >> {log}
"""
WORKS, REFUSES, HANGS = "sys.exit({last} != 1)", "sys.exit(3)", "import time; time.sleep(60)"


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The file in which the daemon notes all."""
    daemon, log = tmp_path / mps.DAEMON, tmp_path / "log"
    daemon.write_text(FAKE.format(log=log))
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "FIRST_CLIENT", WORKS)
    return log


def test_clients_find_the_daemon_while_it_lasts(log):
    with mps.shared_gpus() as environment:
        pipe = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir() and environment["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert log.read_text() == f"started for 2,3 in {pipe}\n"
    assert log.read_text().endswith("quit\n") and not Path(pipe).exists()


def test_a_job_may_have_many_open_files(log):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2048:
        pytest.skip("the limit of this process is too low")
    with contextlib.ExitStack() as stack:
        for _ in range(1024):
            stack.enter_context(open(os.devnull))
        assert stack.enter_context(mps.shared_gpus()) is not None


@pytest.mark.parametrize("client", [REFUSES, HANGS])
def test_none_where_no_gpu_is_to_be_had_so(log, monkeypatch, client):
    monkeypatch.setattr(mps, "FIRST_CLIENT", client)
    monkeypatch.setattr(mps, "SECONDS_FOR_A_CLIENT", 1)
    with mps.shared_gpus() as environment:
        assert environment is None
    assert log.read_text().endswith("quit\n")


def test_none_where_the_user_has_one(log, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with mps.shared_gpus() as environment:
        assert environment is None
    assert not log.exists()


def test_none_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps.shared_gpus() as environment:
        assert environment is None


def test_none_where_there_is_no_room(log, monkeypatch, tmp_path):
    monkeypatch.setattr(mps.tempfile, "tempdir", str(tmp_path / "missing"))
    with mps.shared_gpus() as environment:
        assert environment is None
    assert not log.exists()


KILLED = """
import time
from tvm_passes.batch import mps
mps.FIRST_CLIENT = "sys.exit(0)"
with mps.shared_gpus() as environment:
    print(environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
    time.sleep(60)
"""


def test_it_ends_with_a_job_that_is_killed(log):
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pipe = Path(process.stdout.readline().strip())
        assert pipe.is_dir()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while pipe.parent.exists() or not log.read_text().endswith("quit\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.gpu
def test_two_processes_of_a_gpu_find_the_same(photos, detector_folder, tmp_path, monkeypatch):
    """By MPS, where that is installed."""
    environments, worker = [], processes._Worker

    def noted(options, environment):
        environments.append(environment)
        return worker(options, environment)

    monkeypatch.setattr(processes, "_Worker", noted)
    mod, folder = painted_detector(masks="raw"), tmp_path / "cuda"
    runtime.save(folder, runtime.build_library(mod, "cuda"), mod, "cuda", {"model": "raw"})
    one = batch.detect(photos, tmp_path / "one" / "detections.parquet", detector_folder("raw"))
    two = batch.detect(photos, tmp_path / "two" / "detections.parquet", folder, gpus=1, processes=2)
    expected, found = rows(one.detections), rows(two.detections)
    assert {name: each["masks"] for name, each in found.items()} == {
        name: each["masks"] for name, each in expected.items()
    }
    assert [each is not None for each in environments] == [shutil.which(mps.DAEMON) is not None] * 2
