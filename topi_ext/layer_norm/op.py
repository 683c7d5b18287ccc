"""The operator `topi_ext.layer_norm`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._rows import Rows
from .._tvm import Attrs, Expr, TensorType, Type, call, const, convert, script, te, tir
from .._whole import whole
from .problem import Problem

if TYPE_CHECKING:
    from .._types import const_range, output_tensor

NAME = "topi_ext.layer_norm"
FLOATS = ("float32", "float16", "bfloat16")
Refuse = Callable[[str], NoReturn]  # raises the error of the operator that is called
ARGUMENTS = {
    "data": "Of any shape; float32, float16 or bfloat16.",
    "gamma": "(C,), or a scalar where there is none.",
    "beta": "(C,), or a scalar where there is none.",
}


def layer_norm(
    data: Expr,
    gamma: Expr | None = None,
    beta: Expr | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Expr:
    """Data with mean 0 and variance 1 along one axis, times gamma, plus beta.

    Parameters
    ----------
    data : Expr
        Of any shape with at least one axis; float32, float16 or bfloat16. Only the extent C along `axis` must
        be known at compile time.
    gamma : Expr, optional
        (C,), float32 or of the type of the data: a factor for each channel.
    beta : Expr, optional
        (C,), float32 or of the type of the data: an addend for each channel.
    axis : int
        The axis of the channels. The last one is the fastest.
    epsilon : float
        What is added to the variance; above 0.

    Returns
    -------
    result : Expr
        Of the shape and the type of the data.

    Convention
    ----------
    - As torch's `layer_norm` over one axis: (x - mean) / sqrt(variance + epsilon) * gamma + beta, and the
      variance is the mean of the squares of the differences, divided by C and not by C - 1.
    - All is computed in float32, the variance after the mean; only the result is rounded, once.
    - NaN or an infinity makes all of its channels NaN.

    >>> from topi_ext.layer_norm import reference
    >>> data = np.float32([[1, 2, 3], [0, 0, 9]])
    >>> print(reference.layer_norm(data, beta=np.float32([0, 1, 0])).round(2))
    [[-1.22  1.    1.22]
     [-0.71  0.29  1.41]]
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"layer_norm: epsilon must be above 0, not {epsilon}")
    nothing = const(0, "float32")
    optional = [nothing if value is None else value for value in (gamma, beta)]
    return call(
        NAME,
        [data, *optional],
        axis=whole("layer_norm: axis", axis),
        epsilon=float(epsilon),
        has_gamma=int(gamma is not None),
        has_beta=int(beta is not None),
    )


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    data, rank, axis = types[0], len(types[0].shape), int(attrs["axis"])
    if data.dtype not in FLOATS:
        _refuse(f"data must be of type {', '.join(FLOATS)}, not {data.dtype}")
    if not -rank <= axis < rank:
        _refuse(f"data of the shape {data.shape} have no axis {axis}")
    check_scales(types, attrs, known_channels(data, axis, _refuse), _refuse)
    return data


def known_channels(data: TensorType, axis: int, refuse: Refuse) -> int:
    """The extent along the axis of the channels."""
    channels = known(data.shape[axis])
    if not channels:
        refuse(
            f"the extent along axis {axis} must be known and above 0, but data have the shape {data.shape}"
        )
    return channels


def check_scales(types: Sequence[TensorType], attrs: Attrs, channels: int, refuse: Refuse) -> None:
    """Refuse a gamma or beta that does not fit the data."""
    data = types[0]
    for name, type_ in zip(("gamma", "beta"), types[1:]):
        if attrs[f"has_{name}"]:
            if len(type_.shape) != 1 or known(type_.shape[0]) != channels:
                refuse(f"{name} must have the shape ({channels},), not {type_.shape}")
            if type_.dtype not in ("float32", data.dtype):
                refuse(f"{name} must be of type float32 or {data.dtype}, not {type_.dtype}")


def given_tensors(attrs: Attrs, inputs: Sequence[te.Tensor]) -> dict[str, te.Tensor]:
    """The tensors by name, without a gamma or beta that is not given."""
    named = zip(("data", "gamma", "beta"), inputs)
    return {name: tensor for name, tensor in named if name == "data" or attrs[f"has_{name}"]}


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


@script
@no_type_check
def _shapes(data, rank):
    result = output_tensor((rank,), "int64")
    for i in const_range(rank):
        result[i] = data[i]
    return result


def shape_function(_attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    """The shape of the result is that of the data, whatever the attributes."""
    return [_shapes(inputs[0], convert(int(inputs[0].shape[0])))]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    problem = Problem(Rows.of(inputs[0], int(attrs["axis"])), float(attrs["epsilon"]))
    return [kernels.layer_norm(problem, given_tensors(attrs, inputs))]


_register.register(
    NAME,
    "Normalize data along one axis.",
    ARGUMENTS,
    _type_relation,
    shape_function,
    _register.kernels_in(__package__),
    _compute,
)
