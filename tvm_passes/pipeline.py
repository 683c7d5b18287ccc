"""The passes of this project, in the order they are applied; each line that needs its place says why."""

import tvm

from ._report import recording
from .restore_depth_to_space import RestoreDepthToSpace


def default_pipeline():
    """Every pass that keeps a network's results, in order."""
    return tvm.transform.Sequential([RestoreDepthToSpace()], name="tvm_vision_passes")


def explain(mod, passes=None):
    """Apply passes (by default all of `default_pipeline`), and say what each rule did and refused.

    The answer prints as a table; `answer.module` is the rewritten module.
    """
    with recording() as report:
        report.module = (passes or default_pipeline())(mod)
    return report
