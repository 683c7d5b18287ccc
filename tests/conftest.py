"""Devices for all tests; those of `tests/relax` run where TVM has Relax, the others where it has Relay."""

import faulthandler
import gc
import os
import sys
from pathlib import Path

import pytest

from topi_ext.bootstrap import tvm_in_use

if tvm_in_use.has_relay:
    from hypothesis import HealthCheck, settings

    pytest_plugins = ["tests.devices"]
    collect_ignore = ["relax"]

    # The same examples in each run, on a busy machine, too; `--hypothesis-profile default` tries new ones.
    settings.register_profile(
        "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")
else:
    collect_ignore = [path.name for path in Path(__file__).parent.iterdir() if path.name != "relax"]


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that at the end no process waits for another that has one.

    Only with `--no-loadscope-reorder`: else those with many tests come first, however long they take.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Random numbers of torch do not depend on the tests that this process ran before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collection_finish():
    """What is imported by now stays: Python need not look through it for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish():
    """A process that does not end within minutes of its last test says where it is, and ends."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:  # it waits for the other ones
        faulthandler.cancel_dump_traceback_later()
