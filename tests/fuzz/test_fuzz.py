"""Both fuzzers for a minute, from fixed seeds."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--seed", "100000"], ["--own", "--seed", "100000"]], ids=["nnsmith", "own"]
)
def test_a_minute(options, tmp_path):
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "1", "--found", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
