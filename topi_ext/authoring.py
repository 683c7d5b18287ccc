"""Building blocks of operators: their registration, and small pieces of hand-written kernels.

They are for new operators; `tutorials/03_add_an_op.py` shows how to write one.
"""

from ._floats import Locals
from ._kernel import barrier, ceil_div, launch, local, variables
from ._register import kernels_in, known, refuse, register

__all__ = [
    "Locals",
    "barrier",
    "ceil_div",
    "kernels_in",
    "known",
    "launch",
    "local",
    "refuse",
    "register",
    "variables",
]
