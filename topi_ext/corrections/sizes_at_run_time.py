"""Convolutions and products on CPUs, of images, signals or matrices whose sizes are known only at run time.

TVM's templates choose their tiles among the factors of a size, and do not compile where it is an expression;
where it is a variable they take it for 1, and compute one pixel at a time. Importing this module gives such
an image tiles of a fixed width, the last of which may extend past its edge. For a signal TVM computes all of
it in one vector, for which it needs the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import tvm
from tvm import te, topi
from tvm.autotvm.task import task
from tvm.autotvm.task.space import ConfigSpace, OtherOptionEntity, SplitEntity
from tvm.topi.x86 import conv2d, conv2d_alter_op, depthwise_conv2d, group_conv2d

PIXELS = 8  # of a row, of which each keeps its sums in registers
ANY_SIZE = 64  # stands for an unknown size where it decides nothing


def _is_known(size: Any) -> bool:
    return isinstance(size, (int, tvm.tir.IntImm))


def _known(sized: Any) -> Any:
    """A tensor or a workload, with a stand-in for each size that is not known."""
    if isinstance(sized, te.Tensor):
        shape = [size if _is_known(size) else ANY_SIZE for size in sized.shape]
        return te.placeholder(shape, sized.dtype)
    sizes = {name: getattr(sized, name) for name in ("height", "width")}
    return sized._replace(**{name: size if _is_known(size) else ANY_SIZE for name, size in sizes.items()})


def _with_fixed_tiles(stock: Callable[..., None]) -> Callable[..., None]:
    @wraps(stock)
    def choose(cfg: Any, sized: Any, *args: Any, **options: Any) -> None:
        sizes = sized.shape if isinstance(sized, te.Tensor) else (sized.height, sized.width)
        if all(map(_is_known, sizes)):
            stock(cfg, sized, *args, **options)
            return
        stock(cfg, _known(sized), *args, **options)
        cfg["tile_oh"], cfg["tile_ow"] = OtherOptionEntity(1), SplitEntity([-1, PIXELS])

    return choose


conv2d._get_default_config = _with_fixed_tiles(conv2d._get_default_config)
conv2d_alter_op._get_default_config = conv2d._get_default_config
group_conv2d._get_default_config = _with_fixed_tiles(group_conv2d._get_default_config)
depthwise_conv2d._fallback_schedule = _with_fixed_tiles(depthwise_conv2d._fallback_schedule)

_stock_axis, _stock_serialize_args = ConfigSpace.axis, task.serialize_args


def _axis(var: Any) -> Any:
    return _stock_axis(ANY_SIZE if isinstance(var, tvm.tir.PrimExpr) and not _is_known(var) else var)


def _serialize_args(args: Iterable[Any]) -> Any:
    """The key that tiles are remembered by; TVM's own takes sizes that are variables, but no expressions."""
    return _stock_serialize_args([_known(arg) if isinstance(arg, te.Tensor) else arg for arg in args])


ConfigSpace.axis, task.serialize_args = staticmethod(_axis), _serialize_args


def _without_vectors(stock: Callable[..., te.Schedule]) -> Callable[..., te.Schedule]:
    @wraps(stock)
    def schedule(outs: list[te.Tensor]) -> te.Schedule:
        is_known = all(_is_known(size) for out in outs for size in out.shape)
        return stock(outs) if is_known else topi.generic.schedule_conv1d_ncw(outs)

    return schedule


for name in "schedule_conv1d_ncw", "schedule_group_conv1d_ncw":
    setattr(topi.x86, name, _without_vectors(getattr(topi.x86, name)))


def _of_operands(stock: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    """A product with the sizes of its operands: those of its result, a fused kernel may not be given."""

    @wraps(stock)
    def product(
        tensor_a: te.Tensor,
        tensor_b: te.Tensor,
        oshape: Any = None,
        out_dtype: Any = None,
        transpose_a: bool = False,
        transpose_b: bool = True,
        *args: Any,
        **options: Any,
    ) -> te.Tensor:
        if oshape is not None and not all(map(_is_known, oshape)):
            is_one = _is_known(tensor_a.shape[0]) and int(tensor_a.shape[0]) == 1
            batch = (tensor_b if is_one else tensor_a).shape[0]
            rows, columns = tensor_a.shape[2 if transpose_a else 1], tensor_b.shape[1 if transpose_b else 2]
            oshape = [batch, rows, columns]
        return stock(tensor_a, tensor_b, oshape, out_dtype, transpose_a, transpose_b, *args, **options)

    return product


topi.nn.batch_matmul = _of_operands(topi.nn.batch_matmul)
