"""The building blocks of passes: rules and patterns, graphs, reports, and the base of every pass.

Import from here to write a rule; `tutorials/02_write_a_pass.py` shows how.
"""

from typing import TYPE_CHECKING

from topi_ext.bootstrap import tvm_in_use

from .contract import LEGAL, NO_MATCH, Match, Refusal, Rule
from .report import Outcome, PassReport, Report, recording

if TYPE_CHECKING or tvm_in_use.has_relay:  # the rest is for graphs of Relay
    from .expressions import constant, either_way, known_shape, location, op_name, scalar, static_shape
    from .graph import Graph, calls_of, children, relay_functions
    from .match import any_op, match
    from .module_pass import Pass
    from .rule import RulePass, apply_rules
    from .text import as_text
    from .verify import PassBrokeModule, verify_each_pass

__all__ = [
    "LEGAL",
    "NO_MATCH",
    "Graph",
    "Match",
    "Outcome",
    "Pass",
    "PassBrokeModule",
    "PassReport",
    "Refusal",
    "Report",
    "Rule",
    "RulePass",
    "any_op",
    "apply_rules",
    "as_text",
    "calls_of",
    "children",
    "constant",
    "either_way",
    "known_shape",
    "location",
    "match",
    "op_name",
    "recording",
    "relay_functions",
    "scalar",
    "static_shape",
    "verify_each_pass",
]
