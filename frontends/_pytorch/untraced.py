"""What torch computes while it traces, but not as a part of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def untraced() -> Iterator[None]:
    set_tracing: Any = vars(torch._C)["_set_tracing_state"]
    tracing = torch._C._get_tracing_state()
    set_tracing(None)
    try:
        yield
    finally:
        set_tracing(tracing)
