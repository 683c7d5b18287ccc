"""The CUDA kernel of a convolution, written down for a `Plan`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from math import gcd
from operator import mul

from tvm import te, tir
from tvm.tir.ir_builder import BufferVar

from .._kernel import barrier, launch, local, variables
from .._types import IntExpr
from . import tensor_core
from .cpu import activate
from .plan import PIECE, Plan

RESIDUAL_REGISTERS = 32  # of a thread

_Tile = tuple[tir.PrimExpr, tir.PrimExpr, tir.PrimExpr]  # the image, and the first output pixel


def emit(plan: Plan, buffers: dict[str, tir.Buffer]) -> tir.Stmt:
    return _Kernel(plan, buffers).emit()


class _Kernel:
    def __init__(self, plan: Plan, buffers: dict[str, tir.Buffer]) -> None:
        self.plan, self.problem = plan, plan.problem
        self.ib = tir.ir_builder.create()
        self.buffers = {name: self._flat(buffer) for name, buffer in buffers.items()}
        self.c_type = tensor_core.C_TYPES[self.problem.dtype]
        # Channels copied at once; those of a pixel and of a tap begin at a multiple of it. If that is 1, they
        # are read one by one, but written together.
        self.vector = gcd(self.problem.channels, 8)
        self.unit = self.vector if self.vector > 1 else 8
        # Filters that are contiguous in the result, and how many a thread writes at once.
        self.slab = self.problem.filters // self.problem.block
        self.vector_out = gcd(self.slab, plan.run)

    def emit(self) -> tir.Stmt:
        ib, plan = self.ib, self.plan
        with launch(ib, plan.blocks, plan.threads) as (block, self.thread):
            self._emit_kernel(block)
        return ib.get()

    def _emit_kernel(self, block: tir.PrimExpr) -> None:
        plan = self.plan
        self.block, column_block = self._split(block, plan.column_blocks)
        self.first_filter = column_block * plan.columns
        warp = self._uniform("warp_of_block", tir.truncdiv(self.thread, 32))
        self.team, self.warp = self._indices("team", warp, plan.team_threads // 32)
        self.member, self.lane = (tir.truncmod(self.thread, extent) for extent in (plan.team_threads, 32))
        self.warp_in_columns, self.warp_in_pixels = self._split(self.warp, plan.warps[0])
        self._allocate()
        self._find_own_operands()
        (self._emit_resident if plan.resident else self._emit_streaming)()

    # --- shared memory

    def _allocate(self) -> None:
        ib, plan = self.ib, self.plan
        self.shared = ib.allocate("uint8", (plan.shared_memory,), name="shared", scope="shared.dyn")
        self.data_bytes = plan.chunk_planes * plan.plane * PIECE
        self.weight_bytes = plan.halves * plan.half * PIECE
        self.weights_at = plan.data_slots * self.data_bytes
        at = self.weights_at + plan.weight_slots * self.weight_bytes
        self.tables = {}
        for name in ("bias", "slope"):
            if name in self.buffers:
                self.tables[name] = at
                at += 4 * plan.columns
        self.sums_per_row = plan.warp_columns // 2
        self.count = plan.warp_rows * self.sums_per_row
        self.sums = ib.allocate("float32", (self.count,), name="sums", scope="local")
        if plan.is_async:
            return
        self.a = ib.allocate("uint32", (plan.warp_rows * 4,), name="a", scope="local")
        self.b = ib.allocate("uint32", (plan.warp_columns // 8 * 2,), name="b", scope="local")

    def _fill_tables(self) -> None:
        """Bias and slopes as float32."""
        plan, problem = self.plan, self.problem
        for name, at in self.tables.items():
            with self._each(plan.columns) as i:
                k = self.first_filter + i
                exists = k < problem.filters
                value = self.buffers[name][tir.Select(exists, k, 0)].astype("float32")
                self._call(
                    "put", self._shared(at + i * 4), tir.Select(exists, value, tir.const(0, "float32"))
                )

    def _zero(self, at: int, count: int) -> None:
        """Some bytes of shared memory, a multiple of 16."""
        with self._each(count // PIECE) as i:
            self._call("copy_now<16>", self._shared(at + i * PIECE), self._shared(at), tir.const(False))

    # --- loads

    def _load_data(self, tile: _Tile, slot: IntExpr, chunk: IntExpr) -> None:
        """The pixels that a tile sees, in the planes of a chunk."""
        plan, problem = self.plan, self.problem
        height, width = plan.seen
        channels = problem.channels if plan.resident else plan.chunk_planes * 8
        units = -(-channels // self.unit)
        image, y0, x0 = tile
        first_channel, (tap_y, tap_x) = self._chunk(chunk)
        step_y, step_x = problem.strides if plan.by_taps else (1, 1)
        top, left = problem.padding[:2]
        y0 = local(self.ib, "y_first", y0 * problem.strides[0] - top + tap_y)
        x0 = local(self.ib, "x_first", x0 * problem.strides[1] - left + tap_x)
        with self._each(height * width * units, of_team=True) as item:
            pixel, unit = self._indices("pixel", item, units)
            row, column = self._indices("row", pixel, width)
            y, x = y0 + row * step_y, x0 + column * step_x
            inside = self._within(y, problem.size[0]) & self._within(x, problem.size[1])
            channel = unit * self.unit
            inside = inside & self._is_channel(first_channel + channel)
            inside = local(self.ib, "inside", inside.astype("int32"))
            source = ((image * problem.size[0] + y) * problem.size[1] + x) * problem.channels
            source = tir.Select(inside != 0, source + first_channel + channel, 0)
            phase = tir.truncmod(column, plan.steps_between[1]) * plan.columns_of_a_phase
            place = row * plan.pitch + phase + tir.truncdiv(column, plan.steps_between[1])
            piece = tir.truncdiv(channel, 8) * plan.plane + place
            target = slot * self.data_bytes + piece * PIECE + tir.truncmod(channel, 8) * 2
            self._copy(target, "data", source, inside, first_channel + channel)

    def _load_all_weights(self) -> None:
        """Those of the block's filters: contiguous in the tensor."""
        plan, problem = self.plan, self.problem
        units = -(-problem.channels // self.unit)
        place_of_tap = {tap: i for i, (_, tap) in enumerate(plan.tap_places)}
        in_order = all(tap == i for tap, i in place_of_tap.items())
        with self._each(plan.columns * plan.taps * units) as item:
            rest, unit = self._indices("rest", item, units)
            row, tap = self._indices("row", rest, plan.taps)
            k = self.first_filter + row
            inside = local(self.ib, "inside", self._is_filter(k).astype("int32"))
            channel = unit * self.unit
            source = (k * plan.taps + tap) * problem.channels + channel
            if plan.pairs_taps:
                half = tap if in_order else self._lookup(tap, place_of_tap)
            else:
                half = tap * plan.chunk_planes + tir.truncdiv(channel, 8)
            source = tir.Select(inside != 0, source, 0)
            self._copy(self._weight_place(0, half, row, channel), "weight", source, inside, channel)

    def _load_weights(self, chunk: IntExpr, tap: IntExpr, slot: IntExpr) -> None:
        """Those of a step: one tap, the planes of a chunk."""
        plan, problem = self.plan, self.problem
        units = plan.chunk_planes * 8 // self.unit
        first_channel, _ = self._chunk(chunk)
        if plan.by_taps:
            tap = self._tap_of(chunk)
        # A thread keeps to its channels, and its rows are so far apart that nvcc makes constants of the rest.
        rows = plan.threads // units
        first_row, unit = self._indices("row", self.thread, units)
        with self.ib.for_range(0, -(-plan.columns // rows), "i", kind="unroll") as i:
            row, channel = first_row + i * rows, unit * self.unit
            k = self.first_filter + row
            inside = self._is_filter(k) & self._is_channel(first_channel + channel)
            inside = local(self.ib, "inside", inside.astype("int32"))
            source = (k * plan.taps + tap) * problem.channels + first_channel + channel
            place = self._weight_place(slot, tir.truncdiv(channel, 8), row, channel)
            with self.ib.if_scope(row < plan.columns):
                source = tir.Select(inside != 0, source, 0)
                self._copy(place, "weight", source, inside, first_channel + channel)

    def _weight_place(
        self, slot: IntExpr, half: tir.PrimExpr, row: tir.PrimExpr, channel: tir.PrimExpr
    ) -> tir.PrimExpr:
        """The order of filters in a group is such that a thread gets neighbours among its sums."""
        group, run = self.plan.group, self.plan.group // 4
        begin, within = self._indices("group", row, group)
        thread, of_thread = self._indices("owner", within, run)
        row = begin * group + tir.truncdiv(of_thread, 2) * 8 + thread * 2 + tir.truncmod(of_thread, 2)
        at = self.weights_at + slot * self.weight_bytes
        return at + (half * self.plan.half + row) * PIECE + tir.truncmod(channel, 8) * 2

    def _copy(
        self,
        target: tir.PrimExpr,
        name: str,
        source: tir.PrimExpr,
        inside: tir.PrimExpr,
        channel: tir.PrimExpr,
    ) -> None:
        """Values from this channel on, or zeros."""
        source = tir.address_of(self.buffers[name][source])
        if self.vector > 1:
            self._call(f"copy_async<{self.vector * 2}>", self._shared(target), source, inside != 0)
        else:
            left = te.min(self.problem.channels - channel, tir.const(self.unit))
            self._call("copy_few", self._shared(target), source, tir.Select(inside != 0, left, 0))

    def _chunk(self, chunk: IntExpr) -> tuple[IntExpr, tuple[IntExpr, IntExpr]]:
        """The first channel, and where the tap is relative to the first one, in pixels of the data."""
        plan = self.plan
        if plan.resident:
            return 0, (0, 0)
        if not plan.by_taps:
            return chunk * (plan.planes * 8), (0, 0)
        tap = self._tap_of(chunk)
        row, column = tir.truncdiv(tap, self.problem.kernel[1]), tir.truncmod(tap, self.problem.kernel[1])
        of_tap = tir.truncmod(chunk, plan.chunks // plan.taps)
        dilation_y, dilation_x = self.problem.dilation
        return of_tap * (plan.planes * 8), (row * dilation_y, column * dilation_x)

    def _tap_of(self, chunk: IntExpr) -> tir.PrimExpr:
        return tir.truncdiv(chunk, self.plan.chunks // self.plan.taps)

    # --- the order of things

    def _emit_resident(self) -> None:
        ib, plan = self.ib, self.plan
        if self.problem.channels % 8 or plan.all_planes * 8 > self.problem.channels:
            self._zero(0, self.weights_at + self.weight_bytes)
            barrier(ib)
        self._load_all_weights()
        first = local(ib, "first_tile", self.block * plan.teams + self.team)
        self._load_tile(first)
        self._fill_tables()
        self._await_copies()
        barrier(ib)  # the weights are there
        # All teams go as many rounds, since nvcc serialises wgmma in a loop that seems to diverge.
        with ib.for_range(0, -(-plan.all_tiles // plan.workers), "round") as turn:
            number = local(ib, "tile", first + turn * plan.workers)
            residual = None
            if plan.is_async and self.problem.residual:  # with mma, registers are too few to have it so early
                residual = self._load_residual(self._positions(number), range(plan.groups))
            self._await_copies()
            self._team_barrier()
            self._start_sums()
            self._begin()
            data = self._uniform("data_at", self.team * self.data_bytes)
            self._multiply_all(data, tir.const(self.weights_at))
            self._end()
            self._team_barrier()
            self._load_tile(number + plan.workers)
            self._write(self._positions(number), residual)

    def _load_tile(self, number: tir.PrimExpr) -> None:
        """If it exists."""
        with self.ib.if_scope(number < self.plan.all_tiles):
            self._load_data(self._tile(number), self.team, 0)
        self._call("copy_commit")

    def _await_copies(self) -> None:
        """What this thread has copied is there, for the other threads after a barrier."""
        self._call("copy_wait<0>")
        self._see_copies()

    def _team_barrier(self) -> None:
        if self.plan.teams == 1:
            barrier(self.ib)
        else:
            self._call(f"team_barrier<{self.plan.team_threads}>", self.team + 1)

    def _emit_streaming(self) -> None:
        plan = self.plan
        self._fill_tables()
        self._load_first_steps(self.block)
        rounds = tir.truncdiv(plan.all_tiles - 1 - self.block, plan.workers) + 1
        with self.ib.for_range(0, rounds, "round") as turn:
            number = local(self.ib, "tile", self.block + turn * plan.workers)
            self._multiply_all_steps(self._tile(number))
            if plan.workers < plan.all_tiles:
                barrier(self.ib)  # the slots are free
                self._load_first_steps(number + plan.workers)
            self._write(self._positions(number))

    def _load_first_steps(self, number: tir.PrimExpr) -> None:
        """Of a tile, if it exists."""
        plan = self.plan
        with self.ib.if_scope(number < plan.all_tiles):
            tile = self._tile(number)
            for step in range(plan.ahead):
                if step < plan.chunks * plan.steps:
                    self._load_step(tile, tir.const(step), step // plan.steps, step % plan.steps)
                if step == 0 and plan.steps > 1:
                    self._load_data(tile, 0, tir.const(0))
                self._call("copy_commit")

    def _multiply_all_steps(self, tile: _Tile) -> None:
        ib, plan = self.ib, self.plan
        total = plan.chunks * plan.steps
        self._start_sums()
        with ib.for_range(0, plan.chunks, "chunk") as chunk, ib.for_range(0, plan.steps, "tap") as tap:
            step = local(ib, "step", chunk * plan.steps + tap)
            self._call(f"copy_wait<{plan.ahead - 1}>")
            self._see_copies()
            barrier(ib)
            later = local(ib, "later", step + plan.ahead)
            with ib.if_scope(later < total):
                self._load_step(tile, later, tir.truncdiv(later, plan.steps), tir.truncmod(later, plan.steps))
            if plan.steps > 1:
                # The slot of the chunk before: its last step is over now.
                with ib.if_scope((tap == 1) & (chunk + 1 < plan.chunks)):
                    self._load_data(tile, tir.truncmod(chunk + 1, 2), chunk + 1)
            self._call("copy_commit")
            weight_slot = tir.truncmod(step, plan.weight_slots)
            data_slot = tir.truncmod(chunk, 2) if plan.steps > 1 else weight_slot
            data = local(ib, "data_at", data_slot * self.data_bytes)
            if plan.steps > 1:
                data = local(ib, "data_of_tap", data + self._tap(tap))
            weights = local(ib, "weights_of_tap", self.weights_at + weight_slot * self.weight_bytes)
            self._begin()
            self._multiply(data, weights, self._planes())
            self._end(still_running=1)
        if plan.is_async:
            self._call("wait_async<0>")
            self._call(f"settle<{self.count}>", self._at(self.sums, 0))

    def _load_step(self, tile: _Tile, step: tir.PrimExpr, chunk: IntExpr, tap: IntExpr) -> None:
        plan = self.plan
        slot = tir.truncmod(step, plan.weight_slots)
        self._load_weights(chunk, tap, slot)
        if plan.steps == 1:
            self._load_data(tile, slot, chunk)

    def _tile(self, number: tir.PrimExpr) -> _Tile:
        """The image, and the first output pixel."""
        height, width = self.plan.tiles
        image, rest = self._split(number, height * width)
        row, column = self._split(rest, width)
        ib = self.ib
        return (
            local(ib, "image", image),
            local(ib, "y0", row * self.plan.tile[0]),
            local(ib, "x0", column * self.plan.tile[1]),
        )

    # --- the product

    def _multiply_all(self, data: tir.PrimExpr, weights: tir.PrimExpr) -> None:
        """All taps and planes of a tile."""
        plan = self.plan
        if plan.pairs_taps:
            places = [place for place, _ in plan.tap_places]
            steps = [(a, b - a, 2 * i) for i, (a, b) in enumerate(zip(places[::2], places[1::2]))]
            if len(places) % 2:  # with the plane of zeros
                steps.append((places[-1], plan.plane, len(places) - 1))
            self._multiply(data, weights, steps)
            return
        with self.ib.for_range(0, plan.taps, "tap") as tap:
            data = local(self.ib, "data_of_tap", data + self._tap(tap))
            weights = local(
                self.ib, "weights_of_tap", weights + tap * (plan.chunk_planes * plan.half * PIECE)
            )
            self._multiply(data, weights, self._planes())

    def _planes(self) -> list[tuple[int, int, int]]:
        """Of each instruction on the planes of a tap: the place of the first half of pixels, how far it is to
        the second one, and the number of the first half of weights."""
        return [(k * self.plan.plane, self.plan.plane, k) for k in range(0, self.plan.chunk_planes, 2)]

    def _tap(self, tap: tir.PrimExpr) -> tir.PrimExpr:
        """How many bytes a tap is away from the first one."""
        plan = self.plan
        (dilation_y, dilation_x), columns, step = (
            self.problem.dilation,
            self.problem.kernel[1],
            plan.steps_between[1],
        )
        row, column = self._split(tap, columns)
        phase, x = tir.truncmod(column * dilation_x, step), tir.truncdiv(column * dilation_x, step)
        return (row * (dilation_y * plan.pitch) + phase * plan.columns_of_a_phase + x) * PIECE

    def _start_sums(self) -> None:
        with self.ib.for_range(0, self.count, "i", kind="unroll") as i:
            self.sums[i] = tir.const(0, "float32")

    def _begin(self) -> None:
        if self.plan.is_async:
            self._call(f"settle<{self.count}>", self._at(self.sums, 0))
            self._call("begin_async")

    def _end(self, still_running: int = 0) -> None:
        if self.plan.is_async:
            self._call("commit_async")
            self._call(f"wait_async<{still_running}>")
            self._call(f"settle<{self.count}>", self._at(self.sums, 0))

    def _see_copies(self) -> None:
        if self.plan.is_async:
            self._call("see_copies")

    def _multiply(self, data: tir.PrimExpr, weights: tir.PrimExpr, steps: list[tuple[int, int, int]]) -> None:
        """Add the product of pixels at the byte `data` and weights at the byte `weights` to the sums."""
        (self._multiply_async if self.plan.is_async else self._multiply_sync)(data, weights, steps)

    def _multiply_async(
        self, data: tir.PrimExpr, weights: tir.PrimExpr, steps: list[tuple[int, int, int]]
    ) -> None:
        """An instruction takes 8 x 8 pixels."""
        plan = self.plan
        for place, distance, half in steps:
            for i, square in enumerate(self.own_pixels):
                self._call(
                    f"multiply_async<{self.c_type}, {plan.warp_columns}>",
                    self._at(self.sums, i * self.sums_per_row),
                    self._shared(data + square + place * PIECE),
                    distance * PIECE,
                    plan.steps_between[0] * plan.pitch * PIECE,
                    self._shared(weights + self.own_columns + half * plan.half * PIECE),
                    plan.half * PIECE,
                    8 * PIECE,
                    1,
                )

    def _multiply_sync(
        self, data: tir.PrimExpr, weights: tir.PrimExpr, steps: list[tuple[int, int, int]]
    ) -> None:
        """An instruction takes twice 8 pixels in a row."""
        plan = self.plan
        for place, distance, half in steps:
            for i, row in enumerate(self.own_pixels):
                address = self._shared(data + row + (place + self.a_half * distance) * PIECE)
                self._call("load_matrices<4>", self._at(self.a, i * 4), address)
            for j in range(0, plan.warp_columns // 8, 2):
                count = 4 if j + 1 < plan.warp_columns // 8 else 2
                column = self.own_columns if count == 4 else self.own_last_columns
                address = self._shared(weights + column + (half * plan.half + j * 8) * PIECE)
                self._call(f"load_matrices<{count}>", self._at(self.b, j * 2), address)
            for i in range(plan.warp_rows):
                for j in range(plan.warp_columns // 8):
                    self._call(
                        f"multiply<{self.c_type}>",
                        self._at(self.sums, i * self.sums_per_row + j * 4),
                        self._at(self.a, i * 4),
                        self._at(self.b, j * 2),
                    )

    def _find_own_operands(self) -> None:
        """The byte where this warp's operands begin, in the data of a tap and in the weights; with mma, of
        the row whose address this thread gives (see `load_matrices`)."""
        ib, plan = self.ib, self.plan
        rows = range(plan.warp_rows)
        column = self.warp_in_columns * (plan.warp_columns * PIECE)
        if plan.is_async:
            first = tir.truncdiv(self.warp_in_pixels, 4) * plan.warp_rows
            self.own_pixels = [local(ib, "own_pixels", self._square(first + i)) for i in rows]
            self.own_columns = local(ib, "own_columns", column)
            return
        which, row = self._split(self.lane, 8)
        self.a_half, group = self._split(which, 2)
        group += self.warp_in_pixels * (plan.warp_rows * 2)
        self.own_pixels = [local(ib, "own_pixels", self._group(group + 2 * i) + row * PIECE) for i in rows]
        group, half = self._split(which, 2)
        column += (row + half * plan.half) * PIECE
        self.own_columns = local(ib, "own_columns", column + group * (8 * PIECE))
        self.own_last_columns = local(ib, "own_last_columns", column)

    def _square(self, number: tir.PrimExpr) -> tir.PrimExpr:
        """The byte, in a plane, of the first pixel of a square of 8 x 8 output pixels."""
        y, x = self._corner(number)
        return (y * self.plan.steps_between[0] * self.plan.pitch + x) * PIECE

    def _group(self, number: tir.PrimExpr) -> tir.PrimExpr:
        """The byte, in a plane, of the first one of 8 output pixels in a row."""
        square, row = self._split(number, 8)
        return self._square(square) + row * (self.plan.steps_between[0] * self.plan.pitch * PIECE)

    def _corner(self, square: tir.PrimExpr) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        y, x = self._split(square, self.plan.tile[1] // 8)
        return y * 8, x * 8

    # --- the result

    def _positions(self, number: tir.PrimExpr) -> list[tuple[int, int, tir.PrimExpr]]:
        """Of each pixel of this thread: the instruction and its half; where its result begins, or -1."""
        ib, plan, problem = self.ib, self.plan, self.problem
        image, y0, x0 = self._tile(number)
        height, width = problem.out_size
        positions = []
        for i in range(plan.warp_rows):
            for h in range(2):
                if plan.is_async:
                    warpgroup, warp = self._split(self.warp_in_pixels, 4)
                    square, row = warpgroup * plan.warp_rows + i, warp * 2 + h
                else:
                    group = (self.warp_in_pixels * plan.warp_rows + i) * 2 + h
                    square, row = self._split(group, 8)
                square_y, square_x = self._corner(square)
                y = local(ib, "y", y0 + square_y + row)
                x = local(ib, "x", x0 + square_x + tir.truncdiv(self.lane, 4))
                pixel = (image * height + y) * (width * problem.block) + x
                inside = (number < plan.all_tiles) & (y < height) & (x < width)
                positions.append((i, h, local(ib, "place", tir.Select(inside, pixel * self.slab, -1))))
        return positions

    def _first_of_group(self, group: int) -> tir.PrimExpr:
        """The first filter, of the block's, that this thread has in a group."""
        plan = self.plan
        column = self.warp_in_columns * plan.warp_columns + group * plan.group
        return local(self.ib, "column", column + tir.truncmod(self.lane, 4) * plan.run)

    def _load_residual(
        self, positions: list[tuple[int, int, tir.PrimExpr]], groups: range
    ) -> dict[tuple[int, int, int, int], BufferVar] | None:
        """Of these groups at once: without branches, from the first place if it is outside."""
        if not self.problem.residual:
            return None
        residual = {}
        for group in groups:
            first = local(self.ib, "filter", self.first_filter + self._first_of_group(group))
            for i, h, place in positions:
                for begin in range(0, self.plan.run, self.vector_out):
                    k = first + begin
                    at = tir.Select((place >= 0) & self._is_filter(k), place + k, 0)
                    pairs = self.ib.allocate("uint32", (-(-self.vector_out // 2),), "added", scope="local")
                    source = tir.address_of(self.buffers["residual"][at])
                    self._call(f"load<{self.vector_out * 2}>", self._at(pairs, 0), source)
                    residual[group, i, h, begin] = pairs
        return residual

    def _write(
        self,
        positions: list[tuple[int, int, tir.PrimExpr]],
        residual: dict[tuple[int, int, int, int], BufferVar] | None = None,
    ) -> None:
        """What follows the sums, and to where it goes."""
        ib, run = self.ib, self.plan.run
        added = residual
        at_once = max(1, RESIDUAL_REGISTERS // (len(positions) * run // 2))
        for group in range(self.plan.groups):
            if residual is None and group % at_once == 0:
                groups = range(group, min(group + at_once, self.plan.groups))
                added = self._load_residual(positions, groups)
            column = self._first_of_group(group)
            first = local(ib, "filter", self.first_filter + column)
            tables = {name: self._read_table(at, column, run) for name, at in self.tables.items()}
            for i, h, place in positions:
                of_row = i * self.sums_per_row + group * run * 2 + h * 2
                sums = [self.sums[of_row + j // 2 * 4 + j % 2] for j in range(run)]
                with ib.if_scope(place >= 0):
                    for begin in range(0, run, self.vector_out):
                        piece = added and added[group, i, h, begin]
                        self._write_piece(first, place, begin, sums, tables, piece)

    def _read_table(self, at: int, column: tir.PrimExpr, count: int) -> BufferVar:
        values = self.ib.allocate("float32", (count,), "table", scope="local")
        self._call(f"get<{count}>", self._at(values, 0), self._shared(at + column * 4))
        return values

    def _write_piece(
        self,
        first: tir.PrimExpr,
        place: tir.PrimExpr,
        begin: int,
        sums: list[tir.PrimExpr],
        tables: dict[str, BufferVar],
        added: BufferVar | None,
    ) -> None:
        """Neighbouring filters of a pixel, written at once."""
        ib, problem, vector = self.ib, self.problem, self.vector_out
        k = first + begin
        with ib.if_scope(self._is_filter(k)):
            at = place + k
            if problem.block > 1:
                row = local(ib, "row", tir.truncdiv(k, self.slab))
                at = at + row * (self.slab * (problem.out_size[1] - 1))
            target = tir.address_of(self.buffers["result"][local(ib, "at", at)])
            unpack = self._name(f"unpack<{self.c_type}>")
            values = []
            for j in range(vector):
                more = added and tir.call_pure_extern("float32", unpack, added[j // 2], j % 2)
                values.append(local(ib, "value", self._finish(sums[begin + j], tables, begin + j, more)))
            if vector == 1:
                self._call(f"store_one<{self.c_type}>", target, values[0])
                return
            pairs = ib.allocate("uint32", (vector // 2,), "pairs", scope="local")
            for j in range(0, vector, 2):
                pack = self._name(f"pack<{self.c_type}>")
                pairs[j // 2] = tir.call_pure_extern("uint32", pack, values[j], values[j + 1])
            self._call(f"store<{vector * 2}>", target, self._at(pairs, 0))

    def _finish(
        self, value: tir.PrimExpr, tables: dict[str, BufferVar], index: int, residual: tir.PrimExpr | None
    ) -> tir.PrimExpr:
        problem = self.problem
        if "bias" in tables:
            value = value + tables["bias"][index]
        if problem.activation.name != "none":
            value = local(self.ib, "before", value)
        value = activate(problem.activation, value, tables["slope"][index] if "slope" in tables else None)
        if residual is not None:
            value = value + residual
        if problem.final_activation.name != "none":
            value = local(self.ib, "before", value)
        return activate(problem.final_activation, value)

    # --- helpers

    def _flat(self, buffer: tir.Buffer) -> BufferVar:
        """A buffer as if it had one axis."""
        extent = reduce(mul, buffer.shape, tir.const(1, "int32"))
        return self.ib.buffer_ptr(tir.decl_buffer([extent], buffer.dtype, buffer.name, data=buffer.data))

    @contextmanager
    def _each(self, count: int, of_team: bool = False) -> Iterator[tir.PrimExpr]:
        """Indices below `count`, shared out among the threads of the block, or of the team."""
        plan = self.plan
        threads, thread = (plan.team_threads, self.member) if of_team else (plan.threads, self.thread)
        # nvcc would unroll a loop of known length, and keep its addresses in registers from tile to tile.
        (item,) = variables(self.ib, "int32", "item")
        item[0] = thread
        with self.ib.while_loop(item[0] < count):
            yield local(self.ib, "index", item[0])
            item[0] = item[0] + threads

    @staticmethod
    def _split(index: tir.PrimExpr, by: int) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        return tir.truncdiv(index, by), tir.truncmod(index, by)

    def _indices(self, name: str, index: tir.PrimExpr, by: int) -> tuple[tir.PrimExpr, tir.PrimExpr]:
        """The same as values of the thread."""
        high = local(self.ib, name, tir.truncdiv(index, by))
        return high, local(self.ib, f"in_{name}", index - high * by)

    @staticmethod
    def _within(value: tir.PrimExpr, extent: int) -> tir.PrimExpr:
        """At least 0, and less than the extent."""
        return value.astype("uint32") < tir.const(extent, "uint32")

    def _is_filter(self, k: tir.PrimExpr) -> tir.PrimExpr:
        rest = self.problem.filters % self.plan.columns
        return k < self.problem.filters if rest else tir.const(True, "bool")

    def _is_channel(self, channel: tir.PrimExpr) -> tir.PrimExpr:
        rest = not self.plan.resident and self.problem.channels % (self.plan.planes * 8)
        return channel < self.problem.channels if rest else tir.const(True, "bool")

    def _uniform(self, name: str, value: tir.PrimExpr) -> tir.PrimExpr:
        """A value that is the same for all lanes, in a way that nvcc sees: it may be the warp's register."""
        lanes = tir.const(0xFFFFFFFF, "uint32")
        value = tir.call_intrin("int32", "tir.tvm_warp_shuffle", lanes, value, 0, 32, 32)
        return local(self.ib, name, value)

    def _lookup(self, index: tir.PrimExpr, table: dict[int, int]) -> tir.PrimExpr:
        value = tir.const(0)
        for key, of_key in table.items():
            value = tir.Select(index == key, tir.const(of_key), value)
        return value

    @staticmethod
    def _name(function: str) -> str:
        return f"{tensor_core.NAMESPACE}::{function}"

    def _call(self, function: str, *arguments: IntExpr) -> None:
        self.ib.emit(tir.call_extern("void", self._name(function), *arguments))

    @staticmethod
    def _at(array: BufferVar, index: int) -> tir.PrimExpr:
        return tir.address_of(array[index])

    def _shared(self, byte: IntExpr) -> tir.PrimExpr:
        return tir.address_of(self.shared[byte])
