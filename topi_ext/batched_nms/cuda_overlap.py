"""Whether a box suppresses another: the IoU on CUDA, bit-identical to all other targets.

Each operation is rounded once: nvcc does not contract the functions with `_rn` in their names to fused
multiply-adds. How min and max treat NaN and -0.0 does not matter: a box with a NaN coordinate has an area of
NaN, so all of its IoUs are NaN; and the sign of a width or height of zero changes at most that of an IoU of
zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._kernel import local, variables
from .._tvm import BufferVar, IRBuilder, te, tir
from .._types import IntExpr
from .._warp import first_bit

CORNERS = tir.Ramp(0, 1, 4)
PROBES = 4  # boxes tested together, so that their instructions overlap
TINY, SLACK = 1e-30, 1e-35


def _rounded(name: str, a: tir.PrimExpr, b: tir.PrimExpr) -> tir.PrimExpr:
    return tir.call_pure_extern("float32", f"__f{name}_rn", a, b)


def area(x1: tir.PrimExpr, y1: tir.PrimExpr, x2: tir.PrimExpr, y2: tir.PrimExpr) -> tir.PrimExpr:
    return _rounded("mul", _rounded("sub", x2, x1), _rounded("sub", y2, y1))


@dataclass(frozen=True)
class Box:
    """A box in registers: its corners, its area, and the part of the class id that is not sorted by."""

    corners: BufferVar
    area: tir.PrimExpr
    rest: tir.PrimExpr | None


class BoxList:
    """Boxes in shared memory; `at` may exceed the capacity by as much as a `suppressors` loop looks ahead."""

    def __init__(self, ib: IRBuilder, capacity: int, with_rest: bool) -> None:
        self._ib = ib
        self._corners = ib.allocate("float32x4", (capacity,), name="corners", scope="shared")
        self._areas = ib.allocate("float32", (capacity,), name="areas", scope="shared")
        self._rests = with_rest and ib.allocate("int32", (capacity,), name="rests", scope="shared")

    def __setitem__(self, at: IntExpr, box: Box) -> None:
        self._corners[at] = box.corners[CORNERS]
        self._areas[at] = box.area
        if self._rests:
            self._rests[at] = box.rest

    def __getitem__(self, at: IntExpr) -> Box:
        corners = self._ib.allocate("float32", (4,), name="other", scope="local")
        corners[CORNERS] = self._corners[at]
        return Box(corners, self._areas[at], self._rests[at] if self._rests else None)


class Overlap:
    """The test of pairs against a threshold."""

    def __init__(self, ib: IRBuilder, threshold: tir.PrimExpr) -> None:
        self._ib = ib
        self._threshold = local(ib, "threshold", threshold)
        # To tell without a division that an IoU is not greater: a little less than the threshold. Below
        # TINY, only boxes that do not overlap at all are told; below 0, none.
        # (No Select, in which TVM takes constants less than 1e-9 apart for the same.)
        zero = tir.const(0, "float32")
        less, slack = variables(ib, "float32", "less", "slack")
        less[0] = slack[0] = zero
        with ib.if_scope(threshold >= tir.const(TINY, "float32")):
            less[0] = threshold * tir.const(0.999, "float32")
            slack[0] = tir.const(SLACK, "float32")
        self._less, self._slack = less[0], slack[0]
        self._always = local(ib, "always", (threshold < zero).astype("int32"))

    def may_suppress(self, a: Box, b: Box) -> tir.PrimExpr:
        """False only if the IoU is not greater than the threshold: a quick test without a division.

        The intersection is at least 0, or NaN. If it is not greater than `less * union - slack`, that product
        is at least as large as `slack`, so each of its roundings has a relative error below 1e-7.
        """
        intersection, union = self._intersection_and_union(a, b)
        return (intersection > self._less * union - self._slack) | (self._always != 0)

    def suppresses(self, a: Box, b: Box) -> tir.PrimExpr:
        """Whether `a`, if kept, suppresses `b`, which is of the same segment."""
        intersection, union = self._intersection_and_union(a, b)
        answer = _rounded("div", intersection, union) > self._threshold
        return answer if a.rest is None else answer & (a.rest == b.rest)

    def suppressors(
        self,
        boxes: BoxList,
        box: Box,
        begin: IntExpr,
        end: IntExpr,
        step: int,
        go_on: tir.PrimExpr,
        found: Callable[[tir.PrimExpr], None],
    ) -> None:
        """Call `found(at)` for each of the boxes at `begin`, `begin + step`, ... that would suppress `box`.

        The loop reads up to `(PROBES - 1) * step` elements beyond the end, and stops once `go_on` is false.
        """
        ib = self._ib
        at, left = variables(ib, "int32", "at", "left")
        at[0] = begin
        with ib.while_loop(tir.all(at[0] < end, go_on)):
            left[0] = tir.const(0)
            with ib.for_range(0, PROBES, "probe", kind="unroll") as probe:
                place = local(ib, "place", at[0] + probe * step)
                near = (place < end) & self.may_suppress(boxes[place], box)
                left[0] = left[0] | (near.astype("int32") << probe)
            with ib.while_loop(left[0] != 0):
                place = local(ib, "place", at[0] + first_bit(left[0]) * step)
                left[0] = left[0] & (left[0] - 1)
                with ib.if_scope(self.suppresses(boxes[place], box)):
                    found(place)
            at[0] = at[0] + PROBES * step

    def _intersection_and_union(self, a: Box, b: Box) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        ib, zero = self._ib, tir.const(0, "float32")
        sides = []
        for low, high in ((0, 2), (1, 3)):
            side = _rounded(
                "sub",
                te.min(a.corners[high], b.corners[high]),
                te.max(a.corners[low], b.corners[low]),
            )
            sides.append(te.max(side, zero))
        intersection = local(ib, "intersection", _rounded("mul", *sides))
        union = local(ib, "union_", _rounded("sub", _rounded("add", a.area, b.area), intersection))
        return intersection, union
