"""Time what a call from torch costs the host: `python -m tests.benchmarks.bench_torch_calls`.

On a GPU, or on the CPU where there is none. Each function of `topi_ext.torch` is called on small tensors, and
NMS on as many boxes as a detector has, which is compared with torchvision's on a GPU.
"""

import argparse
import os
import statistics
import time
from contextlib import contextmanager
from unittest import mock

import torch
import torchvision

import topi_ext.torch as ops
from tests.benchmarks import _common as common
from tests.ops.detections import clustered_detections
from tests.ops.torch_calls import TorchCall, torch_calls
from topi_ext.torch._kernels import Arguments

ROUNDS, CALLS = 20, 50  # the median of rounds, of the mean of calls
BOXES, CLASSES = 1000, 80


def main(arguments=None):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    detections = tuple(map(torch.tensor, clustered_detections(BOXES, CLASSES)))
    calls = torch_calls()
    calls[f"batched_nms, {BOXES} boxes"] = TorchCall(ops.batched_nms, (*detections, 0.5), {})
    if on_gpu:
        common.require_gpu()
        calls = {name: call.map(torch.Tensor.cuda) for name, call in calls.items()}
        detections = tuple(each.cuda() for each in detections)
    rows = [row(name, call, on_gpu) for name, call in calls.items()]
    header = ["us a call", "on the host", "kernel", "rest"]
    header += ["on the device", "both, one call", "both, a call of many"] if on_gpu else []
    text = [common.markdown_table(header, rows), "", NOTES, ""]
    if on_gpu:
        text = [common.environment(common.copy_bandwidth(), times=TIMES), "", *text, *versus(detections)]
        common.publish("torch_calls", "Calls from torch", "\n".join(text))
    else:
        facts = [f"- CPU: {common.cpu_name()}, {os.environ.get('OMP_NUM_THREADS', 'all')} threads"]
        facts += [f"- torch: {torch.__version__}", f"- Times: {TIMES}", ""]
        common.publish("torch_calls", "Calls from torch", "\n".join(facts + text), machine=common.cpu_name())


TIMES = f"median of {ROUNDS} rounds of {CALLS} calls, in microseconds, by the host's clock unless stated"
NOTES = """on the host: until the call returns, while the GPU is busy with earlier work, so that nothing waits
for it. kernel: until TVM's compiled function returns, which on a GPU launches all kernels of the call. rest:
checks, memory and streams. both: until the GPU is done, after one call or after many."""


def row(name, call, on_gpu):
    call()
    host, kernel = on_host(call, on_gpu)
    cells = [name, host, kernel, host - kernel]
    if on_gpu:
        cells += [1e3 * common.median_ms(call), 1e3 * common.wall_ms(call), in_a_loop(call)]
    cells = [cell if isinstance(cell, str) else f"{cell:.1f}" for cell in cells]
    print(cells, flush=True)
    return cells


def on_host(call, on_gpu):
    """The host's time for a call, and that within the compiled function, in us."""
    times, within = [], []
    for _ in range(ROUNDS):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(10 * common.QUEUE_CYCLES)
        times.append(mean_of(call))
    for _ in range(ROUNDS):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(10 * common.QUEUE_CYCLES)
        with time_of_kernels() as spent:
            mean_of(call)
        within.append(sum(spent) / CALLS * 1e6)
    return statistics.median(times), statistics.median(within)


def mean_of(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


@contextmanager
def time_of_kernels():
    spent, original = [], Arguments.call

    def timed(self, addresses):
        start = time.perf_counter()
        original(self, addresses)
        spent.append(time.perf_counter() - start)

    with mock.patch.object(Arguments, "call", timed):
        yield spent


def in_a_loop(call):
    """The time of a call of many, until the GPU is done with all."""

    def many():
        for _ in range(CALLS):
            call()

    return common.wall_ms(many) / CALLS * 1e3


def versus(detections):
    """The lines of a table that compares NMS with torchvision's."""
    boxes, scores, class_ids = detections
    indices, count = ops.batched_nms(boxes, scores, class_ids, 0.5)
    expected = torchvision.ops.boxes._batched_nms_vanilla(boxes, scores, class_ids, 0.5)
    if not torch.equal(indices[:count], expected):
        raise SystemExit("the results differ from torchvision's: nothing was timed")
    runs = {
        "one call": lambda function: 1e3 * common.wall_ms(lambda: function(boxes, scores, class_ids, 0.5)),
        "a call of many": lambda function: in_a_loop(lambda: function(boxes, scores, class_ids, 0.5)),
    }
    rows = []
    for name, timed in runs.items():
        ours, theirs = timed(ops.batched_nms), timed(torchvision.ops.batched_nms)
        rows.append([name, f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.1f}"])
    title = f"batched_nms, {BOXES} boxes, {CLASSES} classes, us with the host"
    return [common.markdown_table([title, "ours", "torchvision", "torchvision / ours"], rows)]


if __name__ == "__main__":
    main()
