"""How many threads TVM has, and how they wait: as OpenMP's, which oneDNN and torch use beside them.

TVM reads this as it starts its threads. By default it takes half of the cores and binds each thread to one,
the same one in every process; and an idle thread goes on asking for work, on a core that a thread of oneDNN
needs by then. A network on two cores took 20 ms or 70, by chance.
"""

import os


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
