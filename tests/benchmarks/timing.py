"""Times of calls that take turns, as the clock of the host has them."""

import statistics
import time

from rich.progress import track


def in_turn(calls, rounds, wait=lambda: None):
    """{name: its median time in ms}, after a round to warm up.

    In each round each runs once, so that what else the machine does slows all alike. `wait` returns when the
    work is done.
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
