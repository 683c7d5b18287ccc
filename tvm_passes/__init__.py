"""Compiler passes that make imported detection and super-resolution graphs fast in TVM Relay."""

from topi_ext import _bootstrap  # noqa: F401  (before anything that imports tvm)

from ._report import PassReport, Report, recording
from ._rule import Rule, RulePass
from ._verify import PassBrokeModule, verify_each_pass
from .pipeline import default_pipeline, explain
from .restore_depth_to_space import RestoreDepthToSpace

__all__ = [
    "PassBrokeModule",
    "PassReport",
    "Report",
    "RestoreDepthToSpace",
    "Rule",
    "RulePass",
    "default_pipeline",
    "explain",
    "recording",
    "verify_each_pass",
]
