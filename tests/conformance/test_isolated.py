"""A child process calls the function: what ends the child, or never returns, is one item's result."""

import gc
import os
import signal
import time

from tests.conformance.isolated import Died, each

HERE = os.getpid()


def test_results_are_in_order():
    assert list(each(lambda item: (item, os.getpid() != HERE), [3, 1, 2])) == [
        (3, True),
        (1, True),
        (2, True),
    ]


def test_what_ends_the_process_or_takes_too_long():
    def function(item):
        if item == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "waits":
            time.sleep(60)
        return item

    found = list(each(function, ["dies", "is fine", "waits", "is fine"], seconds=4))
    assert list(map(str, found)) == ["SIGKILL", "is fine", "no result in 4 s", "is fine"]
    assert [isinstance(outcome, Died) for outcome in found] == [True, False, True, False]


def test_the_parents_garbage_is_not_collected():
    """It may wait for threads, which are not there in a forked process."""

    class Waits:
        def __init__(self):
            self.itself = self

        def __del__(self):
            if os.getpid() != HERE:
                time.sleep(60)

    def collected(item):
        gc.collect()
        return item

    gc.disable()
    try:
        Waits()
        assert list(each(collected, ["is fine"], seconds=30)) == ["is fine"]
    finally:
        gc.enable()
