"""Attention without tensor cores: a warp for each query.

In each turn a lane multiplies the query by a key of its own. Then all lanes go through these keys' values
together, each lane with its elements of the result. So far, the greatest score is known, the sum of the
exponentials, and that of the values, both relative to that score: they are scaled anew when it grows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from tvm import te, tir

from .._floats import Locals
from .._kernel import ceil_div, in_a_row, launch, local
from .._warp import from_lane, from_lane_across
from .problem import Problem, offset

WARP, WARPS = 32, 4


def emit_rows(problem: Problem, buffers: Sequence[tir.Buffer]) -> tir.Stmt:
    """The kernel; buffers are query, key, value, the mask if there is one, and the result."""
    ib = tir.ir_builder.create()
    flat = [in_a_row(ib, buffer)[0] for buffer in buffers]
    (query, key, value), result = flat[:3], flat[-1]
    mask = flat[3] if problem.mask is not None else None
    rows, slots = problem.batch * problem.heads * problem.queries, ceil_div(problem.width, WARP)
    keep = Locals(ib, "local")
    with launch(ib, ceil_div(rows, WARPS), WARP * WARPS) as (block, thread):
        lane = tir.truncmod(thread, WARP)
        row = local(ib, "row", block * WARPS + tir.truncdiv(thread, WARP))
        with ib.if_scope(row < rows):  # the same for all lanes of a warp
            of_head = tir.truncdiv(row, problem.queries)
            place = tir.truncdiv(of_head, problem.heads), tir.truncmod(of_head, problem.heads)
            item = tir.truncmod(row, problem.queries)
            own = local(ib, "own", problem.at(0, *place, item))
            keys = local(ib, "keys", problem.at(1, *place, 0))
            values = local(ib, "values", problem.at(2, *place, 0))
            scale, lowest = keep.exact(problem.scale), keep.exact(-np.inf)
            zero = tir.const(0.0, "float32")
            greatest = keep.variable("greatest", lowest)
            total = keep.variable("total", zero)
            sums = ib.allocate("float32", slots, "sums", scope="local")
            with ib.for_range(0, slots, "slot") as slot:
                sums[slot] = zero

            with ib.for_range(0, ceil_div(problem.keys, WARP), "turn") as turn:
                number = local(ib, "number", turn * WARP + lane)
                score = keep.variable("score", lowest)
                with ib.if_scope(number < problem.keys):
                    at = local(ib, "at", keys + number * problem.strides(1)[2])
                    score[0] = zero
                    with ib.for_range(0, problem.depth, "d") as d:
                        score[0] = score[0] + query[own + d].astype("float32") * key[at + d].astype("float32")
                    score[0] = score[0] * scale
                    if mask is not None:
                        of_mask = offset(problem.mask_strides, *place, item, number)
                        score[0] = score[0] + mask[of_mask].astype("float32")
                most = keep("most", te.max(greatest[0], _over_warp(keep, score[0], te.max)))
                # Where all keys so far are excluded, differences to the greatest score would be NaN.
                base = keep("base", tir.if_then_else(most == lowest, zero, most))
                again = keep("again", tir.exp(greatest[0] - base))
                weight = keep("weight", tir.exp(score[0] - base))
                total[0] = total[0] * again + _over_warp(keep, weight, operator.add)
                greatest[0] = most
                with ib.for_range(0, slots, "slot") as slot:
                    sums[slot] = sums[slot] * again
                with ib.for_range(0, WARP, "other") as other:
                    shared = keep("shared", from_lane(weight, other))
                    with ib.if_scope(turn * WARP + other < problem.keys):
                        at = local(ib, "at", values + (turn * WARP + other) * problem.strides(2)[2])
                        with ib.for_range(0, slots, "slot") as slot:
                            element = slot * WARP + lane
                            with ib.if_scope(element < problem.width):
                                sums[slot] = sums[slot] + shared * value[at + element].astype("float32")

            to = local(ib, "to", problem.at(3, *place, item))
            with ib.for_range(0, slots, "slot") as slot:
                element = slot * WARP + lane
                with ib.if_scope(element < problem.width):
                    result[to + element] = (sums[slot] / total[0]).astype(problem.dtype)
    return ib.get()


def _over_warp(
    keep: Locals, value: tir.PrimExpr, combine: Callable[[tir.PrimExpr, tir.PrimExpr], tir.PrimExpr]
) -> tir.PrimExpr:
    """The values of all lanes, combined."""
    for distance in (16, 8, 4, 2, 1):
        value = keep("combined", combine(value, from_lane_across(value, distance)))
    return value
