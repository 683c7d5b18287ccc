"""`layout_transform` without guards where the blocks divide the axis.

TVM guards every element by `index < extent`, even where blocks divide the axis. An operator that reads the
result at an offset, such as a pad of channels that were moved last, gives its simplifier the condition `o * 4
+ floordiv(i - 1, 4) < 4`. It simplifies that to `o < 1`, which is wrong where `i` is 0: elements become
zeros. Importing this module drops the guard; where blocks do not divide an axis, or its extent is known only
at run time, TVM's own computation stays.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import tvm
from tvm import te, tir, topi

from .._strategy import compute_by, generic


class _Axis(NamedTuple):
    """An axis of a layout: "C" as a whole, or the outer or inner axis of its blocks of 4 in "NCHW4c"."""

    letter: str
    block: int  # the extent of the inner one, 1 if there is none
    is_inner: bool


def _axes_of(layout: str) -> list[_Axis] | None:
    """The axes of a layout; None if it has blocks of blocks."""
    parts = re.findall(r"(\d*)([A-Za-z])", layout)
    inner = [letter.upper() for size, letter in parts if size]
    if len(inner) != len(set(inner)):
        return None
    blocks = {letter.upper(): int(size) for size, letter in parts if size}
    return [_Axis(letter.upper(), blocks.get(letter.upper(), 1), bool(size)) for size, letter in parts]


def _lengths(axes: list[_Axis], shape: list[int]) -> dict[str, int]:
    """The length of each axis, its blocks included."""
    lengths: dict[str, int] = {}
    for axis, extent in zip(axes, shape):
        lengths[axis.letter] = lengths.get(axis.letter, 1) * extent
    return lengths


def layout_transform(
    attrs: tvm.ir.Attrs, inputs: list[te.Tensor], result: tvm.ir.TensorType
) -> list[te.Tensor]:
    (data,) = inputs
    source, target = _axes_of(attrs.src_layout), _axes_of(attrs.dst_layout)
    shapes = [*data.shape, *result.shape]
    if source is None or target is None or not all(isinstance(extent, tir.IntImm) for extent in shapes):
        return _by_tvm(attrs, data)
    given, wanted = ([int(extent) for extent in shape] for shape in (data.shape, result.shape))
    if _lengths(source, given) != _lengths(target, wanted):
        return _by_tvm(attrs, data)

    def element(*at: tir.Var) -> tir.PrimExpr:
        whole: dict[str, tir.PrimExpr] = {}
        for axis, index in zip(target, at):
            part = index if axis.is_inner else index * axis.block
            whole[axis.letter] = whole[axis.letter] + part if axis.letter in whole else part
        return data(*(_part(axis, whole[axis.letter]) for axis in source))

    return [te.compute(wanted, element, name="T_layout_trans", tag=topi.tag.INJECTIVE)]


def _part(axis: _Axis, index: tir.PrimExpr) -> tir.PrimExpr:
    return (tir.floormod if axis.is_inner else tir.floordiv)(index, axis.block)


def _by_tvm(attrs: tvm.ir.Attrs, data: te.Tensor) -> list[te.Tensor]:
    return [topi.layout_transform(data, attrs.src_layout, attrs.dst_layout)]


compute_by("layout_transform", layout_transform, generic.schedule_injective)
