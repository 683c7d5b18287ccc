"""Functions of torch that a trace takes for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def patched(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of one of torch, also for what is scripted meanwhile."""
    builtins = torch.jit._builtins._get_builtin_table()
    own = id(getattr(module, name))
    with mock.patch.object(module, name, function):
        if own in builtins:
            builtins[id(function)] = builtins[own]
        try:
            yield
        finally:
            builtins.pop(id(function), None)  # what torch adds meanwhile stays
