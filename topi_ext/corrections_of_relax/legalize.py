"""How Relax is given another kernel for one of its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.transform.legalize_ops.common import _try_convert_to_scalar_const

from .._register import known
from .._tvm import dtype_of

Combine = Callable[[Any, Any], Any]
ABOVE_TVM = 11  # TVM's own level is 10


def legalize(name: str, function: Callable[[relax.BlockBuilder, relax.Call], relax.Expr]) -> Any:
    """Have `function` write calls of an operator; returns TVM's own function."""
    name = f"relax.{name}"
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")
    tvm.ir.register_op_attr(name, "FLegalize", function, ABOVE_TVM)
    return stock


def of_two(name: str, of_floats: Combine | None = None, of_integers: Combine | None = None) -> None:
    """Have a function compute the elements of an operator of two tensors of floats, or of integers."""

    def written(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = dtype_of(call.args[0].ty)
        combine = of_floats if "float" in dtype else of_integers if "int" in dtype else None
        if combine is None:
            return stock(builder, call)

        def combined(left: Any, right: Any) -> te.Tensor:
            return te.compute(
                topi.add(left, right).shape,
                lambda *at: combine(_element(left, at), _element(right, at)),
                name=f"T_{name}",
                tag=topi.tag.BROADCAST,
            )

        return builder.call_te(combined, *_numbers(call.args), primfunc_name_hint=name)

    stock = legalize(name, written)


def _numbers(arguments: Sequence[relax.Expr]) -> list[Any]:
    """The arguments, one of which at most is a number, if it is a constant.

    0 stays a tensor: TVM takes what is multiplied by it for 0, and refuses to divide by it.
    """
    left, right = arguments
    number = _try_convert_to_scalar_const(right)
    if number is not right:
        return [left, right if number.value == 0 else number]
    number = _try_convert_to_scalar_const(left)
    return [left if number is left or number.value == 0 else number, right]


def _element(x: Any, at: Any) -> Any:
    """Of a tensor that is broadcast, or a number."""
    if not isinstance(x, te.Tensor):
        return x
    own = at[len(at) - len(x.shape) :]
    return x(*(0 if known(extent) == 1 else each for extent, each in zip(x.shape, own)))
