"""The canonical form that both frontends give their graphs."""

from __future__ import annotations

from tvm_passes.cleanup.canonicalize import canonical_pipeline

import tvm
from tvm import relay


def canonicalize(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, typed, with both importers' idioms in one canonical form; results do not change."""
    return relay.transform.InferType()(canonical_pipeline()(mod))
