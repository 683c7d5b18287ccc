"""The operator `topi_ext.group_norm`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from .. import _register
from .._tvm import Attrs, Expr, TensorType, Type, call, const, te
from .._whole import whole
from ..conv2d_nhwc.problem import Activation, GivenActivation
from ..layer_norm.op import ARGUMENTS, FLOATS, check_scales, given_tensors, known_channels, shape_function
from .problem import Problem

NAME = "topi_ext.group_norm"


def group_norm(
    data: Expr,
    gamma: Expr | None = None,
    beta: Expr | None = None,
    *,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: GivenActivation = None,
) -> Expr:
    """Images with mean 0 and variance 1 over the pixels and channels of each group, times gamma, plus beta.

    Parameters
    ----------
    data : Expr
        (N, C, ...) or (N, ..., C); float32, float16 or bfloat16. Only C must be known at compile time.
    gamma : Expr, optional
        (C,), float32 or of the type of the data: a factor for each channel.
    beta : Expr, optional
        (C,), float32 or of the type of the data: an addend for each channel.
    groups : int
        How many groups of neighbouring channels there are: a divisor of C. With C groups this is instance
        normalization.
    axis : int
        The axis of the channels: 1, or the last one.
    epsilon : float
        What is added to the variance; above 0.
    activation : None, str or tuple
        What is applied at the end, as `conv2d_nhwc` takes it, except for "prelu".

    Returns
    -------
    result : Expr
        Of the shape and the type of the data.

    Convention
    ----------
    - As torch's `group_norm`: (x - mean) / sqrt(variance + epsilon) * gamma + beta, where the variance is
      the mean of the squares of the differences.
    - Only the result is rounded to half precision, once. On CUDA all is computed in float32: the variance
      after the mean in each part of an image, and the parts are combined without cancellation. On a CPU the
      sums are float64.
    - NaN or an infinity makes all of its group NaN.

    >>> from topi_ext.group_norm import reference
    >>> data = np.float32([[[1, 3], [5, 7], [2, 2], [2, 6]]])
    >>> print(reference.group_norm(data, groups=2).round(2))
    [[[-1.34 -0.45]
      [ 0.45  1.34]
      [-0.58 -0.58]
      [-0.58  1.73]]]
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"group_norm: epsilon must be above 0, not {epsilon}")
    applied = Activation.of(activation, "activation", may_be_prelu=False, operator="group_norm")
    nothing = const(0, "float32")
    optional = [nothing if value is None else value for value in (gamma, beta)]
    return call(
        NAME,
        [data, *optional],
        groups=whole("group_norm: groups", groups),
        axis=whole("group_norm: axis", axis),
        epsilon=float(epsilon),
        has_gamma=int(gamma is not None),
        has_beta=int(beta is not None),
        activation=applied.name,
        activation_low=applied.low,
        activation_high=applied.high,
    )


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    data, rank, axis, groups = types[0], len(types[0].shape), int(attrs["axis"]), int(attrs["groups"])
    if data.dtype not in FLOATS:
        _refuse(f"data must be of type {', '.join(FLOATS)}, not {data.dtype}")
    if rank < 2 or axis not in (1, rank - 1, -1, 1 - rank):
        _refuse(f"axis must be 1 or the last one of at least two, not {axis} of data of shape {data.shape}")
    channels = known_channels(data, axis, _refuse)
    if groups < 1 or channels % groups:
        _refuse(f"groups must be a divisor of the number of channels, {channels}, not {groups}")
    check_scales(types, attrs, channels, _refuse)
    return data


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    activation = Activation(
        str(attrs["activation"]), float(attrs["activation_low"]), float(attrs["activation_high"])
    )
    axis, groups, epsilon = int(attrs["axis"]), int(attrs["groups"]), float(attrs["epsilon"])
    problem = Problem.of(inputs[0], axis, groups, epsilon, activation)
    return [kernels.group_norm(problem, given_tensors(attrs, inputs))]


_register.register(
    NAME,
    "Normalize groups of channels of images.",
    ARGUMENTS,
    _type_relation,
    shape_function,
    _register.kernels_in(__package__),
    _compute,
)
