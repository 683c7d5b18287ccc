"""Times of calls that take turns, by the processor's clock and by the host's."""

import contextlib
import signal
import statistics
import time

CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}  # the first counts all threads
QUICK = 200  # ms


def in_turn(calls, rounds):
    """{clock: {name: the median in ms of its call}}, after a round to warm up.

    Each call runs in each round, so that other work on the machine slows all of them alike; a quick one runs
    again, and that counts, since from image to image its data are in the caches, and not those of others.
    """
    times = {clock: {name: [] for name in calls} for clock in CLOCKS}
    for _ in range(1 + rounds):
        for name, call in calls.items():
            settle()
            found = once(call)
            if found["wall"] < QUICK:
                found = once(call)
            for clock, ms in found.items():
                times[clock][name].append(ms)
    return {
        clock: {name: statistics.median(ms[1:]) for name, ms in of_clock.items()}
        for clock, of_clock in times.items()
    }


def once(call):
    """{clock: the ms of one call}"""
    start = {clock: now() for clock, now in CLOCKS.items()}
    call()
    return {clock: (now() - start[clock]) * 1e3 for clock, now in CLOCKS.items()}


def settle(most=1.0):
    """Wait for the threads of this process, which may spin after their work; for so many seconds at most."""
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        start = time.process_time()
        time.sleep(0.01)
        if time.process_time() - start < 1e-3:
            return


@contextlib.contextmanager
def at_most(seconds):
    """Raise TimeoutError inside when so much time is over; what runs in C++ is interrupted as it returns."""

    def stop(*_):
        raise TimeoutError(f"not ready in {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(max(int(seconds), 1))
    try:
        yield
    finally:
        signal.alarm(0)
