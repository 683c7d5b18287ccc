"""Measure where the time of a call goes, with TVM's own profilers."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm.contrib.debugger.debug_executor import GraphModuleDebug
from tvm.runtime.profiler_vm import VirtualMachineProfiler
from tvm.runtime.vm import Executable

from .model import Model

MIN_RUNS, MAX_RUNS, ENOUGH_SECONDS = 3, 30, 2.0

# The kind of a kernel is the first with a match in its name, which TVM makes of the names of its operators:
# the time of a convolution includes that of the operators fused with it.
KINDS = {
    "shapes, memory": "VM::|shape_func|shape_of|ndarray_size",
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


def profile(model: Model, *inputs: np.ndarray | tvm.nd.NDArray) -> list[Kernel]:
    """The kernels of one call of a `Model`, in order, each with its median time over several runs.

    `inputs` are NDArrays or NumPy arrays, in the order of the model's inputs. The profiler waits for each
    kernel, so their sum may exceed the time of a call, which `call_ms` measures.
    """
    arrays = on_device(model, inputs)
    with _profiler(model, arrays) as run:
        runs = [run() for _ in range(_repeats(run))]
    names = [[_plain(str(call["Name"])) for call in calls] for calls in runs]
    if any(each != names[0] for each in names):
        raise RuntimeError(
            "runs on the same inputs call different kernels, so that their times cannot be combined"
        )
    return [
        Kernel(
            name,
            kind_of(name),
            str(runs[0][index]["Argument Shapes"]) if "Argument Shapes" in runs[0][index] else "",
            statistics.median(calls[index]["Duration (us)"].microseconds for calls in runs) / 1e3,
        )
        for index, name in enumerate(names[0])
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


def on_device(model: Model, inputs: Iterable[np.ndarray | tvm.nd.NDArray]) -> list[tvm.nd.NDArray]:
    """Inputs as arrays on the model's device."""
    return [each if isinstance(each, tvm.nd.NDArray) else tvm.nd.array(each, model.device) for each in inputs]


@contextlib.contextmanager
def _profiler(model: Model, inputs: list[tvm.nd.NDArray]) -> Iterator[Callable[[], list[Any]]]:
    """A function that runs the model in the profiler of its executor, and returns the calls."""
    if model.lib.implements_function("vm_load_executable"):
        machine = VirtualMachineProfiler(Executable(model.lib), model.device)
        yield lambda: machine.profile(*inputs).calls
        return
    module = model.lib["debug_create"]("default", model.device)
    graph = GraphModuleDebug(module, [model.device], model.lib["get_graph_json"](), None)
    try:
        for name, array in zip(model.inputs, inputs):
            graph.set_input(name, array)
        yield lambda: graph.profile().calls
    finally:
        graph.exit()  # removes the folder that it made


def _repeats(run: Callable[[], object]) -> int:
    """The number of runs to measure, from the time of one, after one to warm up."""
    run()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return min(max(round(ENOUGH_SECONDS / max(seconds, 1e-9)), MIN_RUNS), MAX_RUNS)


def _plain(name: str) -> str:
    """A kernel's name without TVM's prefixes."""
    return re.sub(r"^(tvmgen_default_|vm_mod_)?(fused_)?", "", name)
