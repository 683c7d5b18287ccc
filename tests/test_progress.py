"""The bar of what may take long: shown on a terminal only, late, alone, and gone at the end."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import sys
import termios
import threading

import pytest

from tvm_passes import progress
from tvm_passes.command.progress import busy, step
from tvm_passes.progress import only_display, progress_bar


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BEFORE_SHOWN", 0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0)


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal; gives a function that says what that was given since its last call."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # rows and columns
    os.set_blocking(reader, False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stderr = os.fdopen(writer, "w")

    def shown():
        written = b""
        with contextlib.suppress(BlockingIOError):  # nothing more
            while True:
                written += os.read(reader, 100000)
        return written.decode()

    def begin():
        monkeypatch.setattr(sys, "stderr", stderr)  # in the test: pytest sets its own before each phase
        return shown

    yield begin
    stderr.close()
    os.close(reader)


def work(description="Working", steps=3):
    with progress_bar(description, steps) as advance:
        for _ in range(steps):
            advance()


ERASED_LINE = "\x1b[2K"


def test_on_a_terminal_and_gone_at_the_end(terminal):
    shown = terminal()
    work("Working on [it]")
    text = shown()
    assert "Working on [it]" in text and "33%" in text and "3/3" in text
    assert text.rpartition("Working")[2].endswith(ERASED_LINE)
    assert "\x1b[?25h" in text  # the cursor is back


def test_gone_after_an_error_too(terminal):
    shown = terminal()
    with pytest.raises(KeyError), progress_bar("Working", 2) as advance:
        advance()
        raise KeyError
    assert shown().endswith(ERASED_LINE)
    work()
    assert "Working" in shown()


def test_not_at_once(terminal, monkeypatch):
    shown = terminal()
    monkeypatch.setattr(progress, "SECONDS_BEFORE_SHOWN", 2)
    work()
    assert shown() == ""


@pytest.mark.parametrize("nowhere", [io.StringIO(), None])
def test_not_without_a_terminal(monkeypatch, nowhere):
    monkeypatch.setattr(sys, "stderr", nowhere)
    monkeypatch.setenv("FORCE_COLOR", "1")
    work()
    assert nowhere is None or nowhere.getvalue() == ""


def test_not_inside_another(terminal):
    shown = terminal()
    with progress_bar("Outer", 1) as advance:
        work("Inner")
        advance()
    text = shown()
    assert "Outer" in text and "Inner" not in text


def test_not_inside_a_step_of_the_command(terminal):
    shown = terminal()
    with step("Import"):
        work("Inner")
    assert "Inner" not in shown()
    work("Later")
    assert "Later" in shown()


def test_that_something_is_loading_is_shown_on_a_terminal_only(terminal, monkeypatch):
    shown = terminal()
    with busy("Loading"):
        pass
    assert "Loading" in shown()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with busy("Loading"):
        pass
    assert sys.stderr.getvalue() == ""


def test_one_thread_at_a_time(terminal):
    shown = terminal()
    with only_display() as is_free:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert is_free and shown() == ""


def test_streams_and_threads_stay_as_they_are(terminal):
    terminal()
    streams, threads = (sys.stdout, sys.stderr), {*threading.enumerate()}
    with progress_bar("Working", 1) as advance:
        advance()
        assert (sys.stdout, sys.stderr) == streams and threads.issuperset(threading.enumerate())
