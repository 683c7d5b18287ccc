"""Calls of oneDNN that a thread makes again without Python, where `remembered_calls.c` is compiled.

    @packed("name")
    def run(text, *tensors):  # called the first time, and for weights that are others than before
        ...
        remembered = remember(text, shapes_of(tensors[:2]), execution, stream, moves, weights)

A call is known by its text and the shapes of its first two tensors, for as long as what `remember` returned.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._tvm import put_before, register_function
from . import library

LIBRARY = Path(__file__).with_name("remembered_calls.so")
AGAIN = "install this package again, with a C compiler, such as by `pip install -e .` in its folder"
_registered: list[Any] = []  # functions that others call

MOST_AXES = 4  # as in the source of the library
_Extents = ctypes.c_int64 * MOST_AXES * 2

Move = tuple[int, library.Handle]  # the number of a tensor, and the memory that gets its address


class _Move(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_int32), ("memory", ctypes.c_void_p)]


class _Steps(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("primitive", "stream", "arguments")),
        *((name, ctypes.c_int32) for name in ("argument_count", "move_count")),
        *((name, ctypes.c_void_p) for name in ("moves", "samples")),
        *((name, ctypes.c_int32) for name in ("sample_count", "sample_step", "weights")),
    ]


class Remembered:
    """A call, forgotten with this."""

    def __init__(self, handle: int, *kept: Any) -> None:
        self._kept = kept
        weakref.finalize(self, _native().forget, handle)  # type: ignore[union-attr]


def packed(name: str) -> Callable[[Callable], Callable]:
    """Register the function that is decorated, which is called for what is not remembered."""

    def register(function: Callable) -> Callable:
        register_function(name)(function)
        native = _native()
        if native is not None:
            _registered.append(put_before(name, native))
        return function

    return register


def remember(
    text: str,
    shapes: Sequence[Sequence[int]],
    execution: library.Execution,
    stream: library.Handle,
    moves: Sequence[Move],
    weights: tuple[int, Any] | None = None,
) -> Remembered | None:
    """Make these calls in this thread without Python, unless the samples of the weights are others.

    `weights` are the number of that tensor and its `Samples`.
    """
    native = _native()
    if native is None:
        return None
    _use_onednn()
    every = (_Move * len(moves))(*(_Move(number, memory.value) for number, memory in moves))
    steps = execution.steps(stream)
    given = _Steps(*steps, len(every), ctypes.addressof(every))
    if weights is not None:
        given.weights, samples = weights
        given.samples, given.sample_step = ctypes.addressof(samples.last), samples.step
        given.sample_count = len(samples.last)
    extents = _Extents(*((ctypes.c_int64 * MOST_AXES)(*shape) for shape in shapes))
    handle = native.remember_call(text.encode(), ctypes.byref(extents), ctypes.byref(given))
    return Remembered(handle, execution, stream, moves, weights, every) if handle else None


def forget_all_of_thread() -> None:
    native = _native()
    if native is not None:
        native.forget_all_of_thread()


def why_not_remembered() -> str | None:
    """Why Python makes every call, which nothing else tells, or None."""
    if _native() is not None:
        return None
    if not LIBRARY.exists():
        return "it is not compiled"
    try:
        ctypes.CDLL(str(LIBRARY))
    except OSError as error:  # it is for another platform, or not whole
        return f"{LIBRARY.name} cannot be loaded ({error})"
    return f"{LIBRARY.name} is compiled from an older source"


@functools.cache
def _native() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError:  # it is not compiled, or for another platform
        return None
    if not hasattr(found, "remember_call"):  # a clone has got a newer source since it was installed
        reason = f"{LIBRARY} is compiled from an older source, so each call of oneDNN takes 10 us more"
        warnings.warn(f"topi_ext: {reason}: {AGAIN}", stacklevel=2)
        return None
    found.remember_call.restype = ctypes.c_void_p
    found.remember_call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    found.forget.argtypes = [ctypes.c_void_p]
    found.forget.restype = found.forget_all_of_thread.restype = None
    return found


@functools.cache
def _use_onednn() -> None:
    calls = library.library()
    functions = (getattr(calls, name) for name in (library.EXECUTE, library.MOVE))
    _native().use_onednn(*(ctypes.cast(each, ctypes.c_void_p) for each in functions))  # type: ignore[union-attr]
