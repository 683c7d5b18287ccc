"""How the convolution of each channel by itself is divided among the threads of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._kernel import ceil_div, most_lanes
from .._tvm import TVMError
from .problem import Problem

MAX_LANES = 4  # TVM has no code for vectors of more float32
CHANNELS, CHANNELS_OF_MANY = 128, 32  # of a block at most, of few and of many taps
THREADS = 256
MANY = 25  # taps: from here on, to load the weights of many channels would take longer than the products
BAND = 4  # rows of pixels of a block, which share most of the pixels that they read
LARGE = 49  # taps: from here on products take longer than memory
MANY_BLOCKS = 8  # for each multiprocessor, where turns in a block leave none of them idle
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
    """Fitted to 36 convolutions on an H200, with weights in its cache and not: a long run loads less and has
    more sums at once, where each multiprocessor still has a block; likewise several turns store weights once.
    """
    taps = problem.taps
    room = MAX_WEIGHTS // (4 * taps)  # how many channels' weights a block holds
    if room < 1:
        raise TVMError(f"topi_ext.conv2d_nhwc: {taps} taps are too many for a depthwise convolution")
    # TVM has no code to cast vectors of bfloat16.
    lanes = most_lanes(problem.channels, min(1 if problem.dtype == "bfloat16" else MAX_LANES, room))
    vectors, fitting = problem.channels // lanes, room // lanes
    most = (CHANNELS_OF_MANY if taps >= MANY else CHANNELS) // lanes
    across = ceil_div(vectors, ceil_div(vectors, min(most, fitting)))
    # With one more than its own, those who store the taps of a channel store in several banks.
    pitch = min(across + 1, fitting) * lanes
    longest, shortest = (8, 4) if taps >= LARGE else (4, 2)
    plans = [
        DepthwisePlan(problem, lanes, across, pitch, min(pixels, problem.out_size[1]))
        for pixels in (8, 4, 2)
        if shortest <= pixels <= longest
    ]
    plan = next((each for each in plans if each.blocks >= processors), plans[-1])
    longer = replace(plan, turns=4), replace(plan, turns=2)
    return next((more for more in longer if more.blocks >= MANY_BLOCKS * processors), plan)
