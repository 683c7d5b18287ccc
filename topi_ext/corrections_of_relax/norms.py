"""Normalizations of groups and of instances by `topi_ext.group_norm`.

TVM subtracts the square of the mean from the mean of the squares, in float32: of pixels whose mean is a
thousand times their deviation, it leaves no digit of the variance.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from .._tvm import dtype_of
from ..group_norm import group_norm
from ..layer_norm.op import FLOATS
from .in_float32 import in_float32
from .legalize import legalize


def _of_groups(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_taken(call):
        return STOCK_OF_GROUPS(builder, call)
    return _normalized(call, int(call.attrs.num_groups))


def _of_instances(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Each channel is a group."""
    if not _is_taken(call):
        return in_float32(STOCK_OF_INSTANCES, builder, call)
    return _normalized(call, int(call.args[1].ty.shape[0]))


def _is_taken(call: relax.Call) -> bool:
    """Unlike moments of a whole batch, doubles, and what is compiled for no target in scope."""
    data, *scales = (each.ty for each in call.args)
    attrs, rank, dtype = call.attrs, data.ndim, dtype_of(data)
    axis, axes = int(attrs.channel_axis) % rank, {int(each) % rank for each in attrs.axes}
    return (
        axis in (1, rank - 1)
        and axes == set(range(1, rank)) - {axis}
        and isinstance(data.shape[axis], tirx.IntImm)
        and float(attrs.epsilon) > 0
        and dtype in FLOATS
        and {*map(dtype_of, scales)} <= {"float32", dtype}
        and tvm.target.Target.current(allow_none=True) is not None
    )


def _normalized(call: relax.Call, groups: int) -> relax.Expr:
    data, gamma, beta = call.args
    attrs = call.attrs
    return group_norm(
        data,
        gamma if attrs.scale else None,
        beta if attrs.center else None,
        groups=groups,
        axis=int(attrs.channel_axis) % data.ty.ndim,
        epsilon=float(attrs.epsilon),
    )


STOCK_OF_GROUPS = legalize("nn.group_norm", _of_groups)
STOCK_OF_INSTANCES = legalize("nn.instance_norm", _of_instances)
