"""Calls a function on many items in a child process, so that a crash of one item is one item's result."""

import faulthandler
import gc
import os
import pickle
import select
import signal
import struct
import sys

HEADER = struct.Struct("!Q")


class Died(Exception):
    """The process ended while it worked on an item, or took too long and was ended."""


def each(function, items, seconds=60):
    """Yield `function(item)` for every item in order, or a `Died` where the process did not survive it.

    A child process forked from this one works on all items; where it dies, another goes on behind the item
    that killed it. An item may take `seconds`.
    """
    items = list(items)
    done = 0
    while done < len(items):
        for result in _in_child(function, items[done:], seconds):
            yield result
            done += 1


def _in_child(function, items, seconds):
    """The results of the first items: of all, or up to one that is a `Died`."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(function, items, writing, seconds)
    os.close(writing)
    try:
        for _ in items:
            try:
                yield pickle.loads(_message(reading, seconds))
            except TimeoutError:
                yield Died(f"no result in {seconds} s")
                return
            except EOFError:
                _, status = os.waitpid(child, 0)
                child = None
                died_of = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
                yield Died(died_of)
                return
    finally:
        os.close(reading)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _work(function, items, writing, seconds):
    """Never returns: what is above in the stack belongs to the parent."""
    leave_to_the_parent()
    try:
        for item in items:
            faulthandler.dump_traceback_later(
                0.9 * seconds, file=2
            )  # before the parent ends it: where does it wait?
            data = pickle.dumps(function(item))
            _write(writing, HEADER.pack(len(data)) + data)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def leave_to_the_parent():
    """Let a forked process collect only its own garbage.

    That of the parent may be threads and connections which are not there in the child, and it would wait for
    them. And to look at all objects of a large process copies all of their pages.
    """
    gc.freeze()


def _write(pipe, data):
    while data:
        data = data[os.write(pipe, data) :]


def _message(pipe, seconds):
    (length,) = HEADER.unpack(_read(pipe, HEADER.size, seconds))
    return _read(pipe, length, seconds)


def _read(pipe, count, seconds):
    data = b""
    while len(data) < count:
        if not select.select([pipe], [], [], seconds)[0]:
            raise TimeoutError
        part = os.read(pipe, count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
