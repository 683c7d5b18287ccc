"""How the convolution of each channel by itself is divided among the threads of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._kernel import ceil_div, most_lanes
from .._tvm import TVMError
from .problem import Problem

MAX_LANES = 4  # TVM has no code for vectors of more float32
MAX_VECTORS = 64  # of channels, that a block computes
THREADS = 256
MANY = 25  # taps: from here on a thread may compute as many pixels as of a large kernel
BAND = 4  # rows of pixels of a block, which share most of the pixels that they read
LARGE = 49  # taps: from here on products take longer than memory, and weights long to be stored
MAX_WEIGHTS = 40 * 1024  # bytes of shared memory, of the 48 KiB that every GPU has without asking


@dataclass(frozen=True)
class DepthwisePlan:
    """A thread computes a run of pixels of a row, for a vector of channels."""

    problem: Problem
    lanes: int  # of a vector
    across: int  # vectors of channels of a block
    pitch: int  # of a tap's weights, in shared memory
    pixels: int  # of a run
    turns: int = 1  # in which a thread computes a run each, with the weights that the block has stored

    @property
    def vectors(self) -> int:
        return self.problem.channels // self.lanes

    @property
    def chunks(self) -> int:
        return ceil_div(self.vectors, self.across)

    @property
    def down(self) -> int:
        """Runs that a block computes in a turn."""
        return max(1, THREADS // self.across)

    @property
    def band(self) -> int:
        return min(BAND, self.problem.out_size[0])

    @property
    def bands(self) -> int:
        return ceil_div(self.problem.out_size[0], self.band)

    @property
    def runs_of_row(self) -> int:
        return ceil_div(self.problem.out_size[1], self.pixels)

    @property
    def runs(self) -> int:
        return self.problem.batch * self.bands * self.band * self.runs_of_row

    @property
    def blocks(self) -> int:
        return self.chunks * ceil_div(self.runs, self.down * self.turns)


def plan_depthwise(problem: Problem, processors: int) -> DepthwisePlan:
    """Fitted to 46 convolutions on an H200: a long run loads less and has more sums at once, where each
    multiprocessor still has a block; likewise several turns store weights once.
    """
    taps = problem.taps
    room = MAX_WEIGHTS // (4 * taps)  # how many channels' weights a block holds
    if room < 1:
        raise TVMError(f"topi_ext.conv2d_nhwc: {taps} taps are too many for a depthwise convolution")
    # TVM has no code to cast vectors of bfloat16.
    lanes = most_lanes(problem.channels, min(1 if problem.dtype == "bfloat16" else MAX_LANES, room))
    vectors, fitting = problem.channels // lanes, room // lanes
    across = ceil_div(vectors, ceil_div(vectors, min(MAX_VECTORS, fitting)))
    # With one more than its own, those who store the taps of a channel store in several banks.
    pitch = min(across + 1, fitting) * lanes
    longest, shortest = (8, 4) if taps >= LARGE else (8, 2) if taps >= MANY else (4, 2)
    plans = [
        DepthwisePlan(problem, lanes, across, pitch, min(pixels, problem.out_size[1]))
        for pixels in (8, 4, 2)
        if shortest <= pixels <= longest
    ]
    plan = next((each for each in plans if each.blocks >= processors), plans[-1])
    enough = processors if taps >= LARGE else 8 * processors
    return next(
        (more for more in (replace(plan, turns=4), replace(plan, turns=2)) if more.blocks >= enough), plan
    )
