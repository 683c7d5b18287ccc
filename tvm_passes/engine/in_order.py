"""The passes of a pipeline, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import tvm


def passes_in_order(passes: tvm.transform.Pass) -> Iterator[tvm.transform.Pass]:
    """The passes of nested sequences; all have level 0, so TVM would skip none of them."""
    parts = getattr(passes, "passes", None)
    if parts is None:
        yield passes
        return
    for part in parts:
        yield from passes_in_order(part)
