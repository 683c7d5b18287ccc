"""How many threads TVM has, and how they wait: as OpenMP's, which oneDNN and torch use beside them.

TVM reads this as it starts its threads. By default it takes half of the cores and binds each thread to one,
the same one in every process; and an idle thread goes on asking for work, on a core that a thread of oneDNN
needs by then. A network on two cores took 20 ms or 70, by chance.

Where `openmp_threads.c` is compiled, TVM's loops run on the threads of oneDNN: one pool, whose idle threads
may wait awake for a while, since no other one needs their cores. `TVM_PASSES_SHARED_THREADS=0` goes without.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_THREADS = Path(__file__).with_name("openmp_threads.so")
SWITCH = "TVM_PASSES_SHARED_THREADS"
OF_ONE_POOL, OF_TWO = 200_000, 2_000  # how often an idle thread looks for work: some 0.3 ms, or some us


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def set_threads() -> None:
    """Set what the user's environment does not."""
    os.environ.setdefault("TVM_NUM_THREADS", os.environ.get("OMP_NUM_THREADS") or str(cores()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    # They are not there in a forked process, such as a worker of a DataLoader: it would wait for them.
    os.register_at_fork(after_in_child=lambda: os.environ.update(TVM_NUM_THREADS="1"))


def share_threads() -> bool:
    """Let the TVM that is loaded next run its loops on OpenMP's threads, if that is possible here."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        with looking_for_work(OF_ONE_POOL):
            ctypes.CDLL(str(SHARED_THREADS), ctypes.RTLD_GLOBAL)
    except OSError:  # it is not compiled, or OpenMP's library is missing
        return False
    return True


@contextmanager
def looking_for_work(times: int) -> Iterator[None]:
    """What GNU's OpenMP is told as it is loaded: how often a thread looks for work before it sleeps."""
    names = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    if names & set(os.environ):  # the user has said it
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = str(times)
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]
