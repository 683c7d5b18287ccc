"""Times of calls that take turns, by the host's clock."""

import statistics
import time

from rich.progress import track


def in_turn(calls, rounds, wait=lambda: None):
    """{name: its median time in ms}, after a round to warm up.

    Each call runs once in each round, so that other work on the machine slows all of them alike. `wait`
    returns when the work is done.
    """
    times = {name: [] for name in calls}
    # No thread draws while something is timed.
    for _ in track(range(1 + rounds), "Rounds", auto_refresh=False):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            wait()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(of[1:]) for name, of in times.items()}
