"""Applying TVM's own passes."""

from __future__ import annotations

import tvm


def apply_stock(*passes: tvm.transform.Pass, to: tvm.IRModule) -> tvm.IRModule:
    """Apply TVM's own passes, all of them: at a low `opt_level` TVM silently skips some."""
    current = tvm.transform.PassContext.current()
    everything = tvm.transform.PassContext(
        opt_level=3,
        required_pass=current.required_pass,
        disabled_pass=current.disabled_pass,
        config=current.config,
    )
    with everything:
        for each in passes:
            to = each(to)
    return to
