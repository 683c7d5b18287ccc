"""The one place that knows which TVM this process uses: 0.17, whose graphs are Relay's, or 0.27, with Relax.

Operators and kernels take from here the names of TVM that they use, and functions for what the two spell
differently. `te` and `tir` are TVM's own modules: of them, kernels use only what both have.
"""

from typing import TYPE_CHECKING

from ..bootstrap import tvm_in_use

HAS_RELAY = tvm_in_use.has_relay

if TYPE_CHECKING or HAS_RELAY:
    from .relay import *  # noqa: F403 - its __all__, which both have
else:
    from .relax import *  # noqa: F403
