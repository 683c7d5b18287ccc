"""Batched NMS for LLVM, with work proportional to the boxes of each class.

1. Per batch item: radix sorts order the boxes by score, and from that by class and, within a class, by score.
2. Per class: a box is compared with the boxes kept before it, a few at once, until one suppresses it. Tasks
   of about the same number of boxes run in parallel; all threads together work on a class that is too large
   for one.
3. Per batch item: the kept boxes are written in the order of score.

Boxes are numbered through the whole batch, as if all tensors were flat. Memory is some 50 bytes per box, and
no access depends on the values of coordinates, scores and ids.

TVM tells LLVM that there is no NaN, and LLVM relies on it, also in `isnan` and comparisons, so NaN is tested
in the bits, as integers. (Coordinates need no test: if one is NaN, so is the area, and with it each IoU,
whatever minimum and maximum do.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from .._floats import MAGNITUDE, bits, is_nan
from .._kernel import between, in_a_row
from .._tvm import Analyzer, BufferVar, IRBuilder, as_bits, assertion, te, tir
from .._types import IntExpr
from .radix_sort import emit_radix_sort

KEY_OF_NAN = -MAGNITUDE
LANES = 8  # boxes compared at once
TASKS = 64  # more than there are threads, to balance the work
BLOCK = 1024  # boxes of a large class that all threads compare before one thread resolves them
FOR_ONE_THREAD = 2 * BLOCK  # a class of up to this many boxes is never large


def batched_nms(inputs: dict[str, te.Tensor], max_output_size: int) -> list[te.Tensor]:
    """The two results of `topi_ext.batched_nms`, of those of its tensors that are given."""
    *batch, length, _ = inputs["boxes"].shape
    return te.extern(
        [[*batch, length if max_output_size < 0 else max_output_size], batch],
        list(inputs.values()),
        lambda ins, outs: _Kernel(dict(zip(inputs, ins)), *outs).emit(),
        dtype=["int64", "int32"],
        name="batched_nms",
        tag="batched_nms",
    )


class _Kernel:
    """The steps, and the buffers and extents that they share."""

    def __init__(self, inputs: dict[str, tir.Buffer], indices: tir.Buffer, count: tir.Buffer) -> None:
        self.ib = IRBuilder()
        self._require_equal_shapes(inputs)
        *batch, length, _ = inputs["boxes"].shape
        self.rows = (batch[0] if batch else tir.const(1)).astype("int32")
        self.length, self.size = length.astype("int32"), indices.shape[-1].astype("int32")
        self.total = self.rows * self.length
        self.inputs = {name: in_a_row(self.ib, buffer)[0] for name, buffer in inputs.items()}
        self.indices, self.count = (in_a_row(self.ib, each)[0] for each in (indices, count))

    def emit(self) -> tir.Stmt:
        self.by_score = self._workspace("int32", self.total, "by_score")
        self.by_class = self._workspace("int32", self.total, "by_class")
        self.keys = self._workspace("int32", self.total, "keys")
        self.swap = self._workspace("int32", self.total, "swap")
        self.candidates = self._workspace("int32", self.rows, "candidates")  # their number, by batch item
        self.class_end = self._workspace("int32", self.total, "class_end")  # where a class begins, else 0
        self.alive = self._workspace("uint8", self.total, "alive")
        # Boxes in the order of `by_class`. The kept ones of a class are moved to its beginning.
        parts = ("x1", "y1", "x2", "y2", "area")
        self.parts = [self._workspace("float32", self.total + LANES, part) for part in parts]

        with self._each_row() as row:
            self._sort(row)
        self._suppress_in_small_classes()
        if not (isinstance(self.total, tir.IntImm) and self.total.value <= FOR_ONE_THREAD):
            self._suppress_in_large_classes()
        with self._each_row() as row:
            self._write(row)
        return self.ib.get()

    # --- 1. order

    def _sort(self, row: tir.PrimExpr) -> None:
        ib, begin = self.ib, row * self.length
        end = begin + self.length
        with between(ib, begin, end) as i:
            self.class_end[i] = 0
            self.alive[i] = tir.const(1, "uint8")
        if "valid_count" in self.inputs:
            end = begin + te.max(te.min(self.inputs["valid_count"][row], self.length), 0)
            end = ib.let("valid_end", end)

        with between(ib, begin, end) as i:
            self.keys[i] = _descending(self.inputs["scores"][i])
        out = self._variable("int32", "out", begin)
        with between(ib, begin, end) as i:
            self.by_score[out[0]] = i
            out[0] += self._is_candidate(i).astype("int32")
        end = ib.let("end", out[0])
        self.candidates[row] = end - begin

        self._radix_sort(self.by_score, self.keys, begin, end)
        with between(ib, begin, end) as i:
            self.by_class[i] = self.by_score[i]
        self._radix_sort(self.by_class, self.inputs["class_ids"], begin, end)
        self._mark_classes(begin, end)

    def _is_candidate(self, i: tir.PrimExpr) -> tir.PrimExpr:
        if "score_threshold" not in self.inputs:
            return tir.const(True)
        end = _descending(self.inputs["score_threshold"][0])
        return (self.keys[i] > KEY_OF_NAN) & (self.keys[i] < end)

    def _class_at(self, place: tir.PrimExpr) -> tir.PrimExpr:
        return self.inputs["class_ids"][self.by_class[place]]

    def _radix_sort(
        self, numbers: BufferVar, keys: BufferVar, begin: tir.PrimExpr, end: tir.PrimExpr
    ) -> None:
        """The bits in which keys differ: those that are set in some keys but not in all."""
        some, every = self._variable(keys.dtype, "some", 0), self._variable(keys.dtype, "every", -1)
        with between(self.ib, begin, end) as i:
            some[0] = some[0] | keys[numbers[i]]
            every[0] = every[0] & keys[numbers[i]]
        spread = self.ib.let("spread", some[0] ^ every[0])
        emit_radix_sort(self.ib, numbers, keys, spread, self.swap, begin, end)

    def _mark_classes(self, begin: tir.PrimExpr, end: tir.PrimExpr) -> None:
        first = self._variable("int32", "first", begin)
        with between(self.ib, begin + 1, end) as i:
            starts = self._class_at(i) != self._class_at(i - 1)
            with self.ib.if_scope(starts):
                self.class_end[first[0]] = i
                first[0] = i
        with self.ib.if_scope(first[0] < end):
            self.class_end[first[0]] = end

    # --- 2. suppress

    def _suppress_in_small_classes(self) -> None:
        share = tir.truncdiv(self.total + (TASKS - 1), TASKS)
        with self.ib.for_range(0, TASKS, "task", kind="parallel") as task:
            begin = task * share
            with self._each_class(begin, te.min(begin + share, self.total), large=False) as (first, end):
                with between(self.ib, first, end) as i:
                    self._fetch(i)
                count = self._variable("int32", "count", 0)
                with between(self.ib, first, end) as i:
                    self._visit(i, first, 0, count)

    def _suppress_in_large_classes(self) -> None:
        """One class after the other, block by block: first all threads compare the boxes of the block with
        those kept of earlier blocks, then one compares those that are left with each other."""
        ib = self.ib
        with self._each_class(0, self.total, large=True) as (first, end):
            with between(ib, first, end, kind="parallel") as i:
                self._fetch(i)
            count = self._variable("int32", "count", 0)
            with ib.for_range(0, tir.truncdiv(end - first + (BLOCK - 1), BLOCK), "block") as block:
                known = ib.let("known", count[0])
                begin = first + block * BLOCK
                stop = te.min(begin + BLOCK, end)
                with between(ib, begin, stop, kind="parallel") as i:
                    is_suppressed = self._is_suppressed(i, first, 0, known)
                    with ib.if_scope(is_suppressed):
                        self.alive[self.by_class[i]] = tir.const(0, "uint8")
                with between(ib, begin, stop) as i, ib.if_scope(self.alive[self.by_class[i]] != 0):
                    self._visit(i, first, known, count)

    @contextmanager
    def _each_class(
        self, begin: IntExpr, stop: tir.PrimExpr, large: bool
    ) -> Iterator[tuple[tir.PrimExpr, tir.PrimExpr]]:
        """The begin and end of each class that begins at `begin` or later, before `stop`."""
        with between(self.ib, begin, stop) as first:
            end = self.ib.let("end", self.class_end[first])
            limit = te.max(FOR_ONE_THREAD, tir.truncdiv(self.total, 16))
            with self.ib.if_scope(end - first > limit if large else (end > first) & (end - first <= limit)):
                yield first, end

    def _fetch(self, i: tir.PrimExpr) -> None:
        """Copy a box to its position in the order of `by_class`."""
        box = [self.inputs["boxes"][self.by_class[i] * 4 + corner].astype("float32") for corner in range(4)]
        for part, value in zip(self.parts, [*box, (box[2] - box[0]) * (box[3] - box[1])]):
            part[i] = value

    def _visit(self, i: tir.PrimExpr, first: tir.PrimExpr, known: IntExpr, count: BufferVar) -> None:
        """Keep a box unless a kept box of its class suppresses it; the first `known` of them do not."""
        with self.ib.if_scope(self._is_suppressed(i, first, known, count[0])):
            self.alive[self.by_class[i]] = tir.const(0, "uint8")
        with self.ib.else_scope():
            for part in self.parts:
                part[first + count[0]] = part[i]
            count[0] += 1

    def _is_suppressed(
        self, i: tir.PrimExpr, first: tir.PrimExpr, begin: IntExpr, end: tir.PrimExpr
    ) -> tir.PrimExpr:
        """Whether one of the kept boxes `begin` to `end` of the class from `first` on suppresses box `i`."""
        ib = self.ib
        box = [tir.Broadcast(ib.let(part.asobject().name, part[i]), LANES) for part in self.parts]
        threshold = self.inputs["iou_threshold"][0]
        threshold = tir.Select(is_nan(threshold), tir.const(math.inf, "float32"), threshold)
        threshold = tir.Broadcast(ib.let("threshold", threshold), LANES)
        k, found = self._variable("int32", "k", begin), self._variable("int32", "found", 0)
        with ib.while_loop(tir.all(found[0] == 0, k[0] < end)):
            kept = [part[tir.Ramp(first + k[0], 1, LANES)] for part in self.parts]
            beyond = tir.Ramp(0, 1, LANES) >= tir.Broadcast(end - k[0], LANES)
            iou = self._iou(kept, box, invalid=beyond)
            suppresses = (iou > threshold) & ~is_nan(iou)
            found[0] = as_bits(suppresses).astype("int32")
            k[0] += LANES
        return found[0] != 0

    def _iou(
        self, a: Sequence[tir.PrimExpr], b: Sequence[tir.PrimExpr], invalid: tir.PrimExpr
    ) -> tir.PrimExpr:
        """The IoU of two boxes, NaN where `invalid`, in vectors.

        The compiler may fuse a product with a sum, which gives other bits. It cannot if something happens to
        the product in between: here it becomes NaN where `invalid`; the areas have been stored and loaded.

        Values that are used twice are variables, since TVM's simplifier visits an expression once per use.
        """
        let = self.ib.let
        x1a, y1a, x2a, y2a, area_a = (let("kept_part", part) for part in a)
        x1b, y1b, x2b, y2b, area_b = b
        zero = tir.Broadcast(tir.const(0, "float32"), LANES)
        width = let("width", _min(x2a, x2b) - _max(x1a, x1b))
        height = let("height", _min(y2a, y2b) - _max(y1a, y1b))
        all_bits_where_invalid = -invalid.astype(f"int32x{LANES}")
        product = bits(_max(width, zero) * _max(height, zero))
        intersection = let(
            "intersection", tir.reinterpret(f"float32x{LANES}", product | all_bits_where_invalid)
        )
        return let("iou", intersection / ((area_a + area_b) - intersection))

    # --- 3. write

    def _write(self, row: tir.PrimExpr) -> None:
        ib, begin, out = self.ib, row * self.length, row * self.size
        count = self._variable("int32", "count", 0)
        with between(ib, begin, begin + self.candidates[row]) as i:
            box = self.by_score[i]
            with ib.if_scope(tir.all(self.alive[box] != 0, count[0] < self.size)):
                self.indices[out + count[0]] = (box - begin).astype("int64")
                count[0] += 1
        with between(ib, ib.let("rest", count[0]), self.size) as i:
            self.indices[out + i] = tir.const(-1, "int64")
        self.count[row] = count[0]

    # --- helpers

    def _require_equal_shapes(self, inputs: dict[str, tir.Buffer]) -> None:
        """Check at run time what the type relation could not check of extents that were not known."""
        *batch, length, _ = inputs["boxes"].shape
        shapes = {"boxes": [*batch, length, 4], "scores": [*batch, length], "class_ids": [*batch, length]}
        shapes["valid_count"] = batch
        for name, shape in shapes.items():
            for extent, expected in zip(inputs[name].shape, shape) if name in inputs else ():
                if not Analyzer().can_prove_equal(extent, expected):
                    message = f"topi_ext.batched_nms: the shapes of boxes and {name} do not match"
                    self.ib.emit(assertion(extent == expected, message))

    def _workspace(self, dtype: str, extent: tir.PrimExpr, name: str) -> BufferVar:
        return self.ib.allocate(dtype, te.max(extent, 1), name, scope="global")

    def _variable(self, dtype: str, name: str, value: IntExpr) -> BufferVar:
        variable = self.ib.allocate(dtype, 1, name, scope="global")
        variable[0] = tir.const(value, dtype) if isinstance(value, int) else value
        return variable

    def _each_row(self) -> AbstractContextManager[tir.PrimExpr]:
        is_one = isinstance(self.rows, tir.IntImm) and self.rows.value == 1
        return self.ib.for_range(0, self.rows, "row", kind="serial" if is_one else "parallel")


def _descending(score: tir.PrimExpr) -> tir.PrimExpr:
    """An integer that increases as the score decreases; NaN is the smallest, and both zeros are equal."""
    score = score.astype("float32")
    key = tir.Select(bits(score) < 0, _magnitude(score), -_magnitude(score))
    return tir.Select(is_nan(score), tir.const(KEY_OF_NAN, "int32"), key)


def _magnitude(value: tir.PrimExpr) -> tir.PrimExpr:
    return bits(value) & MAGNITUDE


def _min(a: tir.PrimExpr, b: tir.PrimExpr) -> tir.PrimExpr:
    return tir.Select(a < b, a, b)


def _max(a: tir.PrimExpr, b: tir.PrimExpr) -> tir.PrimExpr:
    return tir.Select(a > b, a, b)
