"""Which kernel computes a convolution on CUDA where there is cuDNN: this, or the project's own."""

from __future__ import annotations

import tvm

from .._int8 import INT8
from . import cudnn
from .choose_plan import plan_for
from .cuda import supported_arch
from .cuda_few_pixels import has_few_pixels
from .plan import Plan
from .problem import Problem

# Up to these, measured on an H200, the own kernel is faster.
SMALL_BLOCK = 2048  # results of a block, if an image is divided so finely and yet too small to fill the GPU
CHANNELS_OF_PAIRS = 8  # of two pixels of an image, on which cuDNN takes 1.1 to 4.5 times as long
FEWEST_FILTERS = 16  # even where weights are loaded again and again: cuDNN takes twice as long
FEW_FILTERS, SOME_FILTERS = 32, 64  # of several taps: for any depth, or where the conditions below are met
STRIDED = 64  # channels of several taps with strides
DEEP, DEEPER = 96, 128  # channels of several taps: always, or where the conditions below are met
FEW_RESULTS, SOME_RESULTS, MANY_RESULTS = 10_000, 20_000, 30_000  # of a multiprocessor
DEPTH_AT_ONCE = 128  # channels that cuDNN multiplies at once: it takes as long for a part of them
WEIGHTS_OF_ONE_TAP = 2**15
OF_ONE_TAP = 128  # channels
WEIGHTS_OF_A_PIXEL = 2**24  # or of two: up to these, cuDNN takes 1.2 to 3 times as long
SHALLOW = 256  # channels of one tap: up to these, for many results, cuDNN takes 1.1 to 2 times as long
BEFORE_SILU = 384  # channels of one tap: SiLU takes cuDNN up to twice as long as all else
WIDE_IN_INT8 = 128  # channels and filters: with half as many, cuDNN takes 1.3 to 3 times as long
DEEP_IN_INT8, DEEPEST_IN_INT8 = 512, 1024  # channels of one tap: of few filters, or of few results
FEW_RESULTS_IN_INT8 = 5_000  # of a multiprocessor
# Of GPUs before Hopper, whose blocks have no teams, not much is known.
FEW_CHANNELS, SOME_CHANNELS = 32, 64  # always, or where there is little to multiply or there are many tiles
MANY_TILES = 4  # for each block, which hide the time in which weights are loaded


def is_cudnn_better(problem: Problem, target: tvm.target.Target) -> bool:
    """Whether to prefer cuDNN to this project's own kernel; only the own one does depth to space."""
    arch = supported_arch(problem.dtype, target)
    if arch is None or not cudnn.is_capable(problem):
        return False
    if has_few_pixels(problem):
        return problem.channels * problem.filters > WEIGHTS_OF_A_PIXEL
    if problem.groups > 1:
        return False  # in int8 it is slower; in float16 it is faster only with strides, but may have no plan
    plan = plan_for(problem, arch)
    if problem.dtype == INT8:
        is_wide = min(problem.channels, problem.filters) >= WIDE_IN_INT8
        return is_wide and not _is_own_better_in_int8(plan)
    return not _is_own_better(plan)


def _is_own_better_in_int8(plan: Plan) -> bool:
    """Measured: where there is little to multiply for each result, or few results for a block."""
    problem = plan.problem
    has_few_results = plan.results <= FEW_RESULTS_IN_INT8
    if plan.taps == 1:
        if problem.strides != (1, 1):
            return False  # of pixels that it skips, ours reads all
        if has_few_results:
            return problem.channels <= DEEPEST_IN_INT8
        return problem.channels <= (DEEP_IN_INT8 if problem.filters <= WIDE_IN_INT8 else SHALLOW)
    if problem.channels <= WIDE_IN_INT8:
        return True
    is_quick = problem.filters <= WIDE_IN_INT8 or has_few_results or _has_silu(problem)
    return is_quick and problem.strides == (1, 1) and problem.channels <= SHALLOW


def _is_own_better(plan: Plan) -> bool:
    """Measured: where few results are left for a block, or few channels, and the weights stay with it."""
    problem = plan.problem
    if not plan.resident:
        return plan.is_async and (problem.filters <= FEWEST_FILTERS or _has_odd_depth(plan))
    if problem.channels <= CHANNELS_OF_PAIRS:
        return True
    if plan.pixels * plan.columns <= SMALL_BLOCK:
        return plan.taps > 1 or problem.channels * problem.filters <= WEIGHTS_OF_ONE_TAP
    if not plan.is_async:
        return problem.strides == (1, 1) and _is_own_better_before_hopper(plan)
    return _is_own_better_of_one_tap(plan) if plan.taps == 1 else _is_own_better_of_taps(plan)


def _has_odd_depth(plan: Plan) -> bool:
    """Of some results of few filters, cuDNN takes as long for 192 channels as for 256."""
    problem = plan.problem
    is_odd = problem.strides == (1, 1) and problem.channels % DEPTH_AT_ONCE != 0
    return is_odd and problem.filters <= SOME_FILTERS and plan.results >= SOME_RESULTS


def _is_own_better_of_taps(plan: Plan) -> bool:
    problem = plan.problem
    if problem.strides != (1, 1):
        return problem.channels <= STRIDED
    if problem.filters <= FEW_FILTERS:
        return True
    if problem.filters > SOME_FILTERS and plan.teams == 1 and plan.results > FEW_RESULTS:
        return problem.channels <= DEEP
    return problem.channels <= DEEPER


def _is_own_better_of_one_tap(plan: Plan) -> bool:
    problem = plan.problem
    if problem.strides != (1, 1):
        return False  # of pixels that it skips, ours reads all
    if _has_silu(problem):
        return problem.channels <= BEFORE_SILU
    is_mostly_memory = problem.residual is not None or problem.filters <= OF_ONE_TAP
    if is_mostly_memory and plan.teams > 1 and plan.results >= MANY_RESULTS:  # teams hide what writing takes
        return problem.channels <= SHALLOW
    return problem.channels <= OF_ONE_TAP


def _has_silu(problem: Problem) -> bool:
    return "silu" in (problem.activation.name, problem.final_activation.name)


def _is_own_better_before_hopper(plan: Plan) -> bool:
    problem = plan.problem
    if problem.channels > SOME_CHANNELS:
        return False
    is_mostly_memory = plan.taps == 1 and problem.residual is not None
    return problem.channels <= FEW_CHANNELS or is_mostly_memory or plan.all_tiles >= MANY_TILES * plan.workers
