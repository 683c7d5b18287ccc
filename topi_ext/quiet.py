"""Suppress the notes of TVM and torch while they work for this project.

| source | such as | suppressed by |
|---|---|---|
| AutoTVM | "Cannot find config for target=llvm ..." | AutoTVM's own switch |
| Python's `logging` | "conv2d NHWC layout is not optimized for x86" | a filter of TVM's loggers |
| C++ | "not in feed graph consumer = hybrid(...)" | the state of `std::cerr` |
| Python's `warnings` | "`mapping.TENSOR_TYPE_TO_NP_TYPE` is now deprecated" | a filter by package |

Errors are not suppressed: neither exceptions nor the type errors that Relay prints before it raises one. What
the user has to know is reported by the caller, in one line of its own. With `TVM_PASSES_VERBOSE=1` in the
environment, nothing is suppressed.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator

import tvm
from tvm import autotvm
from tvm.ir import diagnostics

SWITCH = "TVM_PASSES_VERBOSE"
LOGGERS = (
    "autotvm",
    "auto_scheduler",
    "conv2d_winograd",
    "conv3d_winograd",
    "Frontend",
    "strategy",
    "te_compiler",
    "topi",
)
CATEGORIES = (UserWarning, DeprecationWarning, PendingDeprecationWarning, FutureWarning)
BAD = 1  # std::ios_base::badbit: what is written to the stream is dropped
RENDERER = "diagnostics.OverrideRenderer"

_lock = threading.Lock()
_inside = 0
_held = contextlib.ExitStack()
_one_at_a_time = threading.RLock()


def is_verbose() -> bool:
    """Whether the user asked for all notes of TVM and torch."""
    return os.environ.get(SWITCH, "0") not in ("", "0")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress TVM's notes, whichever way it writes them; Python's warnings are unchanged.

    These ways are shared by the whole process: the first thread to enter closes them, the last to leave
    reopens them.
    """
    if is_verbose():
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


@contextlib.contextmanager
def without_warnings_of(*packages: str) -> Iterator[None]:
    """Suppress the warnings that Python attributes to code of these packages, and no others.

    One thread at a time, since `warnings.catch_warnings` restores the filters that it found: if two overlap,
    the filters of one of them would stay.
    """
    if is_verbose():
        yield
        return
    with _one_at_a_time, warnings.catch_warnings():
        for category in CATEGORIES:
            warnings.filterwarnings("ignore", category=category, module=rf"({'|'.join(packages)})(\.|$)")
        yield


def _enter() -> None:
    global _inside
    with _lock:
        if not _inside:
            for hold in (_autotvm_silent, _type_errors_heard, _cerr_dropped):
                _held.enter_context(hold())
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            _held.close()


@contextlib.contextmanager
def _autotvm_silent() -> Iterator[None]:
    """Not by the level of its logger: AutoTVM prints each note once, and would count it as printed."""
    before = autotvm.GLOBAL_SCOPE.silent
    autotvm.GLOBAL_SCOPE.silent = True
    try:
        yield
    finally:
        autotvm.GLOBAL_SCOPE.silent = before


@contextlib.contextmanager
def _type_errors_heard() -> Iterator[None]:
    """Let Relay print type errors to std::cerr; the exception says no more than that there were some."""
    if tvm.get_global_func(RENDERER, allow_missing=True):  # the user's own, not on std::cerr
        yield
        return
    default = tvm.get_global_func("diagnostics.DefaultRenderer")

    def render(context: diagnostics.DiagnosticContext) -> None:
        _set_cerr(0)
        try:
            default().render(context)
        finally:
            _set_cerr(BAD)

    diagnostics.override_renderer(render)
    try:
        yield
    finally:
        diagnostics.override_renderer(None)


@contextlib.contextmanager
def _cerr_dropped() -> Iterator[None]:
    """Close std::cerr, not file descriptor 2, which Python, other libraries and crash reports use too."""
    _set_cerr(BAD)
    try:
        yield
    finally:
        _set_cerr(0)


def _set_cerr(state: int) -> None:
    if _clear_cerr is not None:
        _clear_cerr(state)


def _find_clear() -> Callable[[int], None] | None:
    """`std::cerr.clear` of GNU's C++ library, which TVM's wheels use; None with another one."""
    process = ctypes.CDLL(None)
    try:
        cerr = ctypes.addressof(ctypes.c_char.in_dll(process, "_ZSt4cerr"))
        clear = process["_ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate"]
    except (ValueError, AttributeError):
        return None
    clear.argtypes, clear.restype = (ctypes.c_void_p, ctypes.c_int), None
    # An ostream has its ios as a virtual base, whose offset is the third entry before its virtual table.
    table = ctypes.c_ssize_t.from_address(cerr).value
    offset = ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_ssize_t)).value
    return lambda state: clear(cerr + offset, state)


_clear_cerr = _find_clear()


class _Errors(logging.Filter):
    """Drops records below errors, except of a logger whose level was set: that asks for its messages.

    A filter, since setting a level clears the caches of all loggers of the process.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        asked_for = logging.getLogger(record.name).level != logging.NOTSET
        return not _inside or asked_for or record.levelno >= logging.ERROR


for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_Errors())
