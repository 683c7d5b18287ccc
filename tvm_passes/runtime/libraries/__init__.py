"""How modules are compiled, run and stored by the TVM that this process uses, with Relay or with Relax."""

from typing import TYPE_CHECKING

from topi_ext.bootstrap import tvm_in_use

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .relay import *  # noqa: F403 - its __all__, which both have
else:
    from .relax import *  # noqa: F403
