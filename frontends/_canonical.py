"""The canonical form that both frontends give their graphs."""

from __future__ import annotations

from tvm_passes.cleanup.canonicalize import canonical_pipeline
from tvm_passes.engine.free_variables import check, unchecked
from tvm_passes.engine.typed import remembering
from tvm_passes.engine.without_collector import without_collector

import tvm
from tvm import relay


def canonicalize(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, typed, with both importers' idioms in one canonical form; results do not change."""
    with remembering(), without_collector(), unchecked():
        mod = relay.transform.InferType()(canonical_pipeline()(mod))
    check(mod)
    return mod
