"""Exact class-aware NMS on CUDA: a sort by class and score, one suppression kernel, a sort by score.

1. Sort the boxes of each batch item by class, score and index. A class is then a segment.
2. Gather them in this order, as float32, and reset the counters of the next kernel.
3. Suppress (`cuda_suppress`): blocks take tiles of the sorted boxes; each tile is tested against the kept
   boxes of its class in the tiles before, then within itself. The work is proportional to the boxes times
   the kept boxes of their class, and all classes and batch items proceed in parallel.
4. Sort the boxes by score and index, those not kept last, as far as the indices of the leading ones need it,
   and write these.

A few boxes are not sorted: their places are counted (`cuda_rank`), in step 1 with what step 2 does. So are
they where few of many boxes take part, which the GPU finds out (`cuda_few`).

Memory besides inputs and outputs is linear in the boxes: less than 60 bytes per box and 100 per batch item,
so 12 MB for 200,000 boxes, where a matrix of pairs would take 5 GB at one bit each.

A class id contributes 32 bits to the sort key, and the other 32 stay with the box. For an id in the range of
an int32, the first 32 bits are the id itself. Larger ids may collide: then several classes share a segment,
which costs time, but boxes of different classes never suppress each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .._kernel import ceil_div, launch, local
from .._register import known
from .._tvm import IRBuilder, dtype_of, te, tir
from .._types import Condition, IntExpr
from ..sort import Buffers, Order, emit_selection, emit_sort, plan_selection
from ..sort.tile import tile_shape
from . import cuda_few, cuda_rank
from .cuda_problem import Problem, View, split_id
from .cuda_suppress import NOT_KEPT, SuppressShape, emit_suppress, shape_for

THREADS = 256
SELECTION = ("candidates", "candidate_count", "best_of_groups")  # the workspace of the selection


def batched_nms(inputs: dict[str, te.Tensor], max_output_size: int) -> list[te.Tensor]:
    """The two results of `topi_ext.batched_nms`, of those of its tensors that are given."""
    *batch, length = inputs["scores"].shape
    limit = None if max_output_size < 0 else max_output_size
    outputs = {
        "indices": ([*batch, length if limit is None else limit], "int64"),
        "count": (batch, "int32"),
    }
    rows_or_one = batch[0] if batch else 1
    has_some = "valid_count" in inputs or "score_threshold" in inputs
    some = _workspace_of_few(rows_or_one, length, limit) if has_some else {}
    known_length = known(length)
    shape = shape_for(bool(some) or (known_length is not None and known_length <= cuda_rank.MAX_KEYS))
    outputs |= _workspace(rows_or_one, length, dtype_of(inputs["class_ids"]), limit, shape) | some

    def emit(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = IRBuilder()
        buffers = dict(zip([*inputs, *outputs], [*ins, *outs]))
        views = {name: View(ib, buffer) for name, buffer in buffers.items()}
        rows = _extent(ib, "rows", rows_or_one)
        _emit(Problem(ib, rows, _extent(ib, "length", length), limit, views, shape))
        return ib.get()

    shapes, types = zip(*outputs.values())
    tensors = te.extern(
        list(shapes),
        list(inputs.values()),
        emit,
        dtype=list(types),
        name="batched_nms",
        tag="batched_nms_gpu",
    )
    return [tensors[0], tensors[1]]


def _workspace(
    rows: IntExpr, length: IntExpr, id_type: str, limit: int | None, shape: SuppressShape
) -> dict[str, tuple[list[IntExpr], str]]:
    """Shape and type of each workspace buffer."""
    places = [rows, length]
    buffers = {
        "keys": (places, "int64"),
        "order": (places, "int32"),
        "sorted_boxes": ([*places, 4], "float32"),
        "states": ([rows, ceil_div(length, shape.boxes) * shape.words], "uint64"),
        "ticket": ([1], "uint32"),
        "verdicts": (places, "int32"),
    }
    if id_type == "int64":
        buffers["rest_of_id"] = (places, "int32")
    if limit is not None:
        buffers["total"] = ([rows], "int32")
    if not _fits_into_one_tile(length):
        buffers.update(keys_swap=(places, "int64"), order_swap=(places, "int32"))
        plan = plan_selection(rows, length, limit)
        if plan is not None:
            buffers.update(zip(SELECTION, plan.workspace()))
        else:
            buffers.update(verdicts_swap=(places, "int32"), verdicts_scratch=(places, "int32"))
    return buffers


def _workspace_of_few(
    rows: IntExpr, length: IntExpr, limit: int | None
) -> dict[str, tuple[list[IntExpr], str]]:
    known_rows, known_length = known(rows), known(length)
    if known_rows is None or known_length is None:
        return {}
    if not cuda_few.may_be_few(known_rows, known_length, limit):
        return {}
    chunks = cuda_few.chunks_of(known_length, limit)
    return {"taking_part": ([rows], "int32"), "of_chunks": ([rows, chunks], "int32")}


def _fits_into_one_tile(length: IntExpr) -> bool:
    return isinstance(length, (int, tir.IntImm)) and tile_shape(int(length)).size >= int(length)


def _extent(ib: IRBuilder, name: str, extent: IntExpr) -> IntExpr:
    """An extent as an int, or as an int32 computed on the host."""
    return int(extent) if isinstance(extent, (int, tir.IntImm)) else ib.let(name, extent.astype("int32"))


class _Nowhere:
    """Stands for a buffer that is written but never read."""

    def __setitem__(self, place: tuple[IntExpr, ...], value: tir.PrimExpr) -> None:
        pass


def _emit(problem: Problem) -> None:
    """All kernels, in order."""
    ib, rows, length = problem.ib, problem.rows, problem.length
    if problem.is_nothing(rows):
        ib.emit(tir.Evaluate(0))
        return
    if problem.is_nothing(length) or problem.is_nothing(problem.limit):
        with ib.if_scope(tir.const(0, "int32") < rows):
            _initialize(problem)
        return
    if "taking_part" in problem.views:
        _emit_few_or_many(problem)
        return
    has_few = problem.limit is None or problem.limit <= cuda_rank.MAX_KEYS
    are_few = has_few and cuda_rank.are_few(rows, length)
    with ib.if_scope(tir.const(0, "int32") < rows):
        _either(ib, are_few, lambda: _place_by_class(problem), lambda: _sort_by_class(problem))
    with ib.if_scope(tir.all(tir.const(0, "int32") < rows, tir.const(0, "int32") < length)):
        emit_suppress(problem)
        _either(ib, are_few, lambda: _place_by_score(problem), lambda: _sort_by_score(problem))


def _emit_few_or_many(problem: Problem) -> None:
    """Count the places of those that take part, or else sort all boxes."""
    are_many = partial(cuda_few.are_many, problem)
    cuda_few.emit_collect(problem, partial(_initialize_at, problem))
    cuda_few.emit_place_by_class(problem, partial(_place, problem))
    _sort_by_class(problem, are_many)
    emit_suppress(problem)
    cuda_few.emit_place_by_score(problem)
    _sort_by_score(problem, are_many)


def _either(
    ib: IRBuilder, condition: bool | tir.PrimExpr, if_so: Callable[[], None], if_not: Callable[[], None]
) -> None:
    """Emit one of two, or a choice on the host."""
    if isinstance(condition, bool):
        return if_so() if condition else if_not()
    with ib.if_scope(condition):
        if_so()
    with ib.else_scope():
        if_not()


# --- steps 1 and 2: the boxes in the order of class and score, and all counters initialized


def _place_by_class(problem: Problem) -> None:
    cuda_rank.emit_ranks(
        problem.ib,
        problem.rows,
        problem.length,
        "int64",
        problem.key,
        partial(_place, problem),
        visit=lambda row, index: _initialize_at(problem, row, index),
        extent=problem.extent,
    )


def _place(
    problem: Problem,
    row: tir.PrimExpr,
    index: tir.PrimExpr,
    lane: tir.PrimExpr,
    key: tir.PrimExpr,
    rank: tir.PrimExpr,
) -> None:
    """Write a box to its place by class and score; all lanes of a warp do so."""
    views = problem.views
    with problem.ib.if_scope(lane < 4):
        views["sorted_boxes"][row, rank, lane] = views["boxes"][row, index, lane]
    with problem.ib.if_scope(lane == 0):
        views["keys"][row, rank] = key
        views["order"][row, rank] = index
        if "rest_of_id" in views:
            views["rest_of_id"][row, rank] = split_id(problem.ib, views["class_ids"][row, index])[1]


def _sort_by_class(problem: Problem, only_if: Condition | None = None) -> None:
    views = problem.views
    emit_sort(
        problem.ib,
        problem.rows,
        problem.length,
        Order("int64"),
        read_key=problem.key,
        keys=Buffers(views["keys"], views.get("keys_swap")),
        read_payload=lambda _row, index: index,
        payload=Buffers(views["order"], views.get("order_swap")),
        only_if=only_if,
    )

    def fetch(row: tir.PrimExpr, index: tir.PrimExpr) -> None:
        source = local(problem.ib, "source", views["order"][row, index])
        for corner in range(4):
            views["sorted_boxes"][row, index, corner] = views["boxes"][row, source, corner]
        if "rest_of_id" in views:
            views["rest_of_id"][row, index] = split_id(problem.ib, views["class_ids"][row, source])[1]

    _initialize(problem, fetch, only_if)


def _initialize(
    problem: Problem,
    fetch: Callable[[tir.PrimExpr, tir.PrimExpr], None] | None = None,
    only_if: Condition | None = None,
) -> None:
    """Initialize all counters, and call `fetch(row, index)` for each box."""
    ib, blocks = problem.ib, ceil_div(problem.extent, THREADS)
    with launch(ib, problem.rows * blocks, THREADS, only_if) as (block, thread):
        row = local(ib, "row", tir.truncdiv(block, blocks))
        index = local(ib, "index", tir.truncmod(block, blocks) * THREADS + thread)
        _initialize_at(problem, row, index)
        if fetch is not None:
            with ib.if_scope(index < problem.length):
                fetch(row, index)


def _initialize_at(problem: Problem, row: tir.PrimExpr, index: tir.PrimExpr) -> None:
    """What the thread of this index initializes.

    Every run does so, since other kernels may have used the buffers in between.
    """
    ib, length, limit, views = problem.ib, problem.length, problem.limit, problem.views
    with ib.if_scope(index == 0):
        views["count"][row] = tir.const(0)
        if "total" in views:
            views["total"][row] = tir.const(0)
        with ib.if_scope(row == 0):
            views["ticket"][0] = tir.const(0)
    # Where boxes are sorted, the first ones get an index, of a box or -1, from the last kernel.
    first = 0 if "taking_part" in views else length
    with ib.if_scope((index >= first) & (index < (length if limit is None else limit))):
        views["indices"][row, index] = tir.const(-1)
    with ib.if_scope(index < length):
        views["verdicts"][row, index] = tir.const(NOT_KEPT)
        with ib.if_scope(tir.truncmod(index, 32) == 0):
            views["states"][row, tir.truncdiv(index, 32)] = tir.const(0)


# --- step 4: the indices of the kept boxes in the order of score


def _place_by_score(problem: Problem) -> None:
    views = problem.views

    def place(
        row: tir.PrimExpr, index: tir.PrimExpr, lane: tir.PrimExpr, verdict: tir.PrimExpr, rank: tir.PrimExpr
    ) -> None:
        is_wanted = [] if problem.limit is None else [rank < problem.limit]
        with problem.ib.if_scope(tir.all(lane == 0, *is_wanted)):
            views["indices"][row, rank] = tir.Select(verdict == NOT_KEPT, -1, index)

    cuda_rank.emit_ranks(
        problem.ib,
        problem.rows,
        problem.length,
        "int32",
        lambda row, index: views["verdicts"][row, index],
        place,
    )


def _sort_by_score(problem: Problem, only_if: Condition | None = None) -> None:
    views = problem.views

    def index_if_kept(row: tir.PrimExpr, index: tir.PrimExpr) -> tir.PrimExpr:
        return tir.Select(views["verdicts"][row, index] == NOT_KEPT, -1, index)

    plan = plan_selection(problem.rows, problem.length, problem.limit)
    if plan is not None:

        def write(row: tir.PrimExpr, place: tir.PrimExpr, index: tir.PrimExpr) -> None:
            views["indices"][row, place] = index_if_kept(row, index)

        workspace = [views[name] for name in SELECTION if name in views]
        emit_selection(problem.ib, views["verdicts"].buffer, Order("int32"), plan, workspace, write, only_if)
        return
    emit_sort(
        problem.ib,
        problem.rows,
        problem.length,
        Order("int32"),
        read_key=lambda row, index: views["verdicts"][row, index],
        keys=Buffers(_Nowhere(), views.get("verdicts_swap"), views.get("verdicts_scratch")),
        read_payload=index_if_kept,
        # The order by class is not needed any more.
        payload=Buffers(views["indices"], views.get("order_swap"), views["order"]),
        keep=problem.limit,
        only_if=only_if,
    )
