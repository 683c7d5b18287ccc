"""What one call of a model spends on each kernel, by the TVM in use."""

from typing import TYPE_CHECKING

from topi_ext.bootstrap import tvm_in_use

if TYPE_CHECKING or tvm_in_use.has_relay:
    from .relay import profiler
else:
    from .relax import profiler

__all__ = ["profiler"]
