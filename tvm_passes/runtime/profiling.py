"""Measure where the time of a call goes, with TVM's own profilers."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm

from .arrays import Array
from .model import Model
from .profilers import profiler

MIN_RUNS, MAX_RUNS, ENOUGH_SECONDS = 3, 30, 2.0

# The kind of a kernel is the first with a match in its name, which TVM makes of the names of its operators:
# the time of a convolution includes that of the operators fused with it.
KINDS = {
    "shapes, memory": r"VM::|vm\.builtin|shape_func|shape_of|ndarray_size",
    "convolution": r"conv\dd|winograd|dense|matmul",
    "NMS": "non_max_suppression|get_valid_counts|nms",
    "sort": "sort|topk",
    "regions": "roi_align|roi_pool|deformable_attention",
    "masks, keypoints": "paste_masks|encode_masks|heatmaps_to_keypoints",
    "preprocessing, resizing": "preprocess|resize|upsampling|warp_affine|warp_perspective|grid_sample",
    "pooling, reduction": "pool|mean|sum|softmax|norm|(^|_)(max|min|prod|all|any)(_|$)",
    # Whatever arithmetic is done on the way:
    "data movement": "transpose|layout_transform|depth_to_space|space_to_depth|concatenate|stack|split|slice"
    "|pad|scatter|gather|take|argwhere|repeat|tile|broadcast_to|one_hot|reverse|copy",
}
NO_ARITHMETIC = (
    "reshape|reshape_like|squeeze|expand_dims|cast|cast_like|where|full|full_like|zeros|zeros_like|ones|ones_like"
    "|arange|meshgrid|batch_flatten"
)
MOVEMENT, OTHER = "data movement", "arithmetic"


class Kernel(NamedTuple):
    """One call of a kernel in a run, or one step of the virtual machine."""

    name: str
    kind: str  # of KINDS, or OTHER
    shapes: str  # of its arguments
    ms: float


def profile(model: Model, *inputs: np.ndarray | Array) -> list[Kernel]:
    """The kernels of one call of a `Model`, in order, each with its median time over several runs.

    `inputs` are arrays of TVM or of NumPy, in the order of the model's inputs. The profiler waits for each
    kernel, so their sum may exceed the time of a call, which `call_ms` measures.
    """
    if not isinstance(model, Model):
        raise TypeError(f"profile: model must be a Model, as of runtime.compile, not {type(model).__name__}")
    for name, value in model._arguments(inputs, {}).items():
        model._check_input(name, value)
    arrays = on_device(model, inputs)
    with profiler(model, arrays) as run:
        runs = [run() for _ in range(_repeats(run))]
    names = [[_plain(name) for name, _, _ in calls] for calls in runs]
    if any(each != names[0] for each in names):
        raise RuntimeError(
            "runs on the same inputs call different kernels, so that their times cannot be combined"
        )
    return [
        Kernel(name, kind_of(name), runs[0][place][1], statistics.median(calls[place][2] for calls in runs))
        for place, name in enumerate(names[0])
    ]


def call_ms(call: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """The milliseconds from a call until `wait` returns: the median of several, after one to warm up."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        wait()
        return (time.perf_counter() - start) * 1e3

    return statistics.median([timed() for _ in range(_repeats(timed))])


def ms_by_kind(kernels: Iterable[Kernel]) -> dict[str, float]:
    """{kind: milliseconds}, for the kinds that occur."""
    times: dict[str, float] = {}
    for kernel in kernels:
        times[kernel.kind] = times.get(kernel.kind, 0.0) + kernel.ms
    return times


def kind_of(name: str) -> str:
    """The kind of a kernel with this name."""
    for kind, names in KINDS.items():
        if re.search(names, name):
            return kind
    moves = re.fullmatch(
        rf"(((dyn|nn)_)?({NO_ARITHMETIC})_)+[0-9a-f_]*", name + "_"
    )  # namesakes have numbers
    return MOVEMENT if moves else OTHER


def on_device(model: Model, inputs: Iterable[np.ndarray | Array]) -> list[Array]:
    """Inputs as arrays on the model's device."""
    array = tvm.nd.array if tvm_in_use.has_relay else tvm.runtime.tensor
    return [each if isinstance(each, Array) else array(each, model.device) for each in inputs]


def _repeats(run: Callable[[], object]) -> int:
    """The number of runs to measure, from the time of one, after one to warm up."""
    run()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return min(max(round(ENOUGH_SECONDS / max(seconds, 1e-9)), MIN_RUNS), MAX_RUNS)


def _plain(name: str) -> str:
    """A kernel's name without TVM's prefixes."""
    return re.sub(r"^(tvmgen_default_|vm_mod_)?(fused_|tir_)?", "", name)
