"""The Relay operator `topi_ext.full_after`: its arguments, types, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from tvm import relay

from .. import _register
from .._tvm import Attrs, Expr, TensorType, Type, call, te

NAME = "topi_ext.full_after"
ARGUMENTS = {"tensor": "Of any shape and type; it is not read."}
DTYPES = "float32", "uint8"


def full_after(tensor: Expr, shape: Sequence[int], dtype: str, value: float = 0) -> Expr:
    """A tensor of one value, to be written when another tensor is there, and overwritten in part.

    Where steps of a network run at the same time, as in a CUDA graph of `tvm_passes.runtime`, `tensor` says
    which ones it is written beside: those that wait for `tensor`, too. Its kernel leaves them most of the
    GPU. Two calls are two tensors, also if they have the same arguments.

    Parameters
    ----------
    tensor : Expr
        Of any shape and type.
    shape : sequence of int
        Of the result.
    dtype : str
        float32 or uint8.
    value : float
        Of each element.

    Returns
    -------
    result : Expr
        Of this shape and type.

    >>> from topi_ext.full_after import reference
    >>> print(reference.full_after(np.ones(3), (2, 2), "uint8", 7))
    [[7 7]
     [7 7]]
    """
    if dtype not in DTYPES:
        raise ValueError(f"full_after: dtype must be {' or '.join(DTYPES)}, not {dtype!r}")
    shape = [int(extent) for extent in shape]
    if min(shape, default=1) < 0:
        raise ValueError(f"full_after: no extent of the shape must be negative, as in {shape}")
    return call(NAME, [tensor], shape=shape, dtype=dtype, value=float(value))


def _type_relation(_types: Sequence[Type], attrs: Attrs) -> TensorType:
    return TensorType(list(attrs["shape"]), str(attrs["dtype"]))


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    shape = [int(extent) for extent in attrs["shape"]]
    return [kernels.full_after(inputs[0], shape, str(attrs["dtype"]), float(attrs["value"]))]


_register.register(
    NAME,
    "A tensor of one value, written when another tensor is there.",
    ARGUMENTS,
    _type_relation,
    None,
    _register.kernels_in(__package__),
    _compute,
)
relay.op.op.register_stateful(NAME, True)  # so that calls with equal arguments are not joined
