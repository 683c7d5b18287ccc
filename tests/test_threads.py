"""How many threads TVM has, and that the user's environment decides."""

import os
import subprocess
import sys

import pytest

SET = "TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"
CORES = str(len(os.sched_getaffinity(0)))
SCRIPT = f"import os, topi_ext; print(*(os.environ[name] for name in {SET}))"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [CORES, "0", "0"]),
        ({"OMP_NUM_THREADS": "3"}, ["3", "0", "0"]),
        ({"OMP_NUM_THREADS": "3", "TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "1"}, ["1", "1", "0"]),
    ],
)
def test_what_the_environment_leaves_open(given, expected):
    environment = {name: value for name, value in os.environ.items() if name not in (*SET, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected
