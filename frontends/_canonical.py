"""The one spelling both frontends give their graphs."""

from __future__ import annotations

from tvm_passes.cleanup.canonicalize import canonical_pipeline

import tvm
from tvm import relay


def canonicalize(mod: tvm.IRModule) -> tvm.IRModule:
    """A typed module with the idioms of both importers in one spelling; the same numbers."""
    return relay.transform.InferType()(canonical_pipeline()(mod))
