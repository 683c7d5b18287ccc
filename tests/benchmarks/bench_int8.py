"""Time networks in int8 versus float16 and torch: `python -m tests.benchmarks.bench_int8`.

Each network and size of batch is prepared in a process of its own, all at once; one of them calibrates the
network for all. When all are ready, or the time for it is over, they are timed one after the other. The
benchmark fails if a bar is missed. `--small` times tiny networks, on the CPU if there is no GPU, and writes
no result: it shows that the benchmark works.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Callable
from unittest import mock

import torch
import torchvision

import tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks._int8_report import (
    EDSR,
    LATENCY,
    MASK_RCNN,
    QUALITY,
    RETINANET,
    SECONDS,
    STREAMS,
    THREAD,
    THROUGHPUT,
    missed,
    report,
)
from tests.benchmarks._kernels import steps_of
from tests.benchmarks._models import call_of, of_super_resolution, of_torchvision
from tests.benchmarks._quantized import calibrated, compiled, made_once
from tests.benchmarks.bench_zoo import in_time, measured_in_turn
from tests.models.shapes import drawn, train_to_enlarge
from tests.models.zoo import random_image, retinanet_of_mlperf, tiny_detector, tiny_mask_rcnn
from tests.zoo.outcome import imported
from tvm_passes.runtime.arrays import is_cuda

import tvm

MODULE = "tests.benchmarks.bench_int8"
SCALE, SHAPES = 4, 25  # of super-resolution, and in an image of it


@dataclass
class Case:
    """`build(batch=n)` gives the network and n images, on the CPU and in float32."""

    build: Callable
    batches: tuple = (1,)
    pipeline: str = "detection"
    training: float = 0.0  # seconds; seeded detectors find something without


def of_mlperf(size=(800, 800), batch=1):
    images = [random_image(*size, seed=index) for index in range(batch)]
    options = {"min_size": size[0], "max_size": size[1]}
    return retinanet_of_mlperf(
        images=[random_image(*size, seed=index) for index in range(2)], **options
    ), images


def tiny(build, size=(64, 64), batch=1):
    images = [random_image(*size, seed=index) for index in range(batch)]
    return build(min_size=size[0], max_size=size[1]), images


def to_enlarge(name, size, batch=1, **options):
    """Of drawn shapes, which it is trained to enlarge."""
    network, _ = of_super_resolution(name, size, **options)
    return network, [torch.stack([drawn(*size, SHAPES, 50 + index)[0] for index in range(batch)])]


NETWORKS = {
    RETINANET: Case(of_mlperf, (1, 2, 4, 8, 16, 32)),
    MASK_RCNN: Case(partial(of_torchvision, "maskrcnn_resnet50_fpn"), (1, 8)),
    EDSR: Case(partial(to_enlarge, "edsr_x4", (540, 960)), pipeline="subpixel", training=60),
    THREAD: Case(partial(to_enlarge, "thread", (720, 1280)), pipeline="subpixel", training=60),
}
SMALL = {
    "RetinaNet, tiny": Case(partial(tiny, tiny_detector), (1, 2)),
    "Mask R-CNN, tiny": Case(partial(tiny, tiny_mask_rcnn)),
    "Sub-pixel network, tiny": Case(
        partial(to_enlarge, "thread", (12, 16), channels=16), pipeline="subpixel", training=0.5
    ),
}


# (network, batch, type, figure): what it must be, and what it should be. 0: the best of all batches.
def main(arguments=None):
    args = parser().parse_args(arguments)
    warnings.simplefilter("ignore")
    if not args.small:
        common.require_gpu()
    if args.one:
        measure(args.one, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = args.kept or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        options = ["--kept", str(kept), "--modes", args.modes]
        options += [f"--{each}" for each in ("small", "tune") if getattr(args, each)]
        rows = measured_in_turn(chosen(args), Path(folder), args.seconds, MODULE, options)
    if not rows:
        sys.exit("None of these networks could be timed.")
    if args.raw:
        args.raw.write_text(json.dumps(rows))
    if args.small:
        print(report(rows, bandwidth=1e10))
        return
    bandwidth = common.copy_bandwidth()
    facts = [common.environment(bandwidth, times=None), f"- torchvision: {torchvision.__version__}"]
    facts.append(f"- Target: {common.tensor_core_target('cudnn-frontend')}")
    common.publish("int8", "Networks in int8", "\n".join([*facts, "", report(rows, bandwidth)]))
    if missed(rows):
        sys.exit(f"Missed: {'; '.join(missed(rows))}")


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="networks with this in their name")
    parser.add_argument("--batches", help="only of these sizes, with commas")
    limit = "to prepare all of them; %(default)s"
    parser.add_argument("--seconds", type=float, default=480, help=limit)
    modes = "of torch, with commas: eager, or those of torch.compile; %(default)s"
    parser.add_argument("--modes", default="eager,default", help=modes)
    parser.add_argument("--tune", action="store_true", help="take the fastest of cuDNN's plans")
    parser.add_argument("--kept", type=Path, help="where calibrations and weights are kept, or are already")
    parser.add_argument("--raw", type=Path, help="write all that was measured there, as JSON")
    parser.add_argument("--small", action="store_true", help="tiny networks, on any machine")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    return parser


def chosen(args):
    networks = SMALL if args.small else NETWORKS
    return [
        f"{name}: {batch}"
        for name, case in networks.items()
        if not args.only or any(text in name for text in args.only)
        for batch in case.batches
        if not args.batches or f"{batch}" in args.batches.split(",")
    ]


# --- one network, for one size of batch


def measure(which, args):
    """Prepare it, say so, wait for a line on the standard input, and time it."""
    deadline = time.monotonic() + args.seconds
    name, _, batch = which.rpartition(": ")
    one = Prepared(name, int(batch), args)
    one.prepare_peers(args.modes, deadline)
    args.to.with_suffix(".ready").touch()
    sys.stdin.readline()
    args.to.write_text(json.dumps(one.timed()))


class Prepared:
    """A network for one size of batch: ours in both types, and its peers."""

    def __init__(self, name, batch, args):
        self.name, self.batch = name, batch
        self.case = (SMALL if args.small else NETWORKS)[name]
        self.makes_images = self.case.pipeline == "subpixel"
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network, images = self.case.build(batch=batch)
        self.sets = [[each.to(self.device) for each in of] for of in (images, [x.flip(-1) for x in images])]
        self.calls = {}
        if self.makes_images:
            path = made_once(args.kept / f"{common.slug(name)}.pt", self._train)
            self.network.load_state_dict(torch.load(path, weights_only=True))
        self._compile(images, args)
        with torch.no_grad():
            self.candidates = None if self.makes_images else self._candidates()
            self.quality = self._quality()

    def _train(self, path):
        network = train_to_enlarge(self.network.to(self.device), SCALE, self.case.training)
        torch.save(network.cpu().state_dict(), path)

    def _compile(self, images, args):
        start = time.monotonic()
        mod = imported(self.network, images)
        pipeline, path = self.case.pipeline, args.kept / f"{common.slug(self.name)}.json"
        of_float, _ = compiled(mod, "float16", pipeline=pipeline)
        print(f"float16 compiled in {time.monotonic() - start:.0f} s", flush=True)
        one = mod if self.batch == 1 else imported(self.network, images[:1])
        calibration = calibrated(one, self._seen(*images[0].shape[-2:]), path, pipeline)
        of_int8, self.reasons = compiled(mod, "int8", calibration, pipeline)
        self.seconds = time.monotonic() - start
        print(f"compiled in {self.seconds:.0f} s", flush=True)
        self.ours = {"int8": of_int8, "float16": of_float}
        for dtype, model in self.ours.items():
            self.calls[dtype] = [in_turns(each, self.sets) for each in [model, *others_like(model)]]
            if args.tune:
                tvm_passes.runtime.tune(model, *self.sets[0], processes=2)

    def _seen(self, height, width):
        """Images to calibrate with, which are not those that are timed."""
        if self.makes_images:
            return [drawn(height, width, SHAPES, 100 + index)[0][None] for index in range(4)]
        return [random_image(height, width, seed=100 + index) for index in range(4)]

    def prepare_peers(self, modes, deadline):
        """torch in half precision, in each mode where it is ready in time."""
        network, of_image = self.network.to(self.device), {}
        if self.device == "cuda":
            network, of_image = network.half().to(memory_format=torch.channels_last), {"dtype": torch.half}
            if self.makes_images:
                of_image["memory_format"] = torch.channels_last
        given = [call_of(network, [each.to(**of_image) for each in of]).args for of in self.sets]
        with torch.no_grad():
            for mode in filter(None, modes.split(",")):
                peer = network if mode == "eager" else torch.compile(network, mode=mode)
                ready = in_time(in_turns(peer, given), deadline - time.monotonic())
                if ready is not None:
                    self.calls[f"torch, {mode}"] = [ready, in_turns(peer, given)]
        if self.device == "cuda":
            torch.cuda.empty_cache()  # other processes need memory too

    def timed(self):
        """All that the report needs to know."""
        figures = {}
        with torch.no_grad():
            for who, calls in self.calls.items():
                figures[who] = {THROUGHPUT: images_a_second(calls, self.batch)}
                if self.batch == 1:
                    figures[who][LATENCY] = percentile_90_ms(calls[0])
        for dtype, decibels in self.quality.items():
            figures[dtype][QUALITY] = decibels
        return {
            "name": self.name,
            "batch": self.batch,
            "figures": figures,
            "candidates": self.candidates,
            "reasons": self.reasons,
            "steps": {dtype: self._steps(model) for dtype, model in self.ours.items()},
            "seconds": self.seconds,
        }

    def _steps(self, model):
        arrays = {name: tvm.nd.array(each.cpu().numpy()) for name, each in zip(model.inputs, self.sets[0])}
        return [asdict(step) for step in steps_of(model.lib, model.device, **arrays)[1].values()]

    def _candidates(self):
        """How many boxes the last NMS gets of one image."""
        boxes = torchvision.ops.boxes
        with mock.patch.object(boxes, "batched_nms", wraps=boxes.batched_nms) as nms:
            self.network.to(self.device)(self.sets[0][:1])
        return len(nms.call_args.args[0])

    def _quality(self):
        """{type: PSNR versus torch in float32} of a network that makes images.

        All are run for once, without a CUDA graph, which is chosen when nothing else runs: plans are made.
        """
        found = {
            dtype: tvm_passes.runtime.Model(model.lib, model.device, cuda_graph=False)(*self.sets[0])
            for dtype, model in self.ours.items()
        }
        if not self.makes_images:
            return {}
        with common.float32_convolutions():
            wanted = self.network.to(self.device)(*self.sets[0])
        return {dtype: psnr(image, wanted) for dtype, image in found.items()}


def others_like(model):
    """More of the same network, for streams beside its own; a CPU's threads are all in use by one."""
    if not is_cuda(model.device):
        return []
    options = {"cut": model.cut, "copy_outputs": False}
    return [tvm_passes.runtime.Model(model.lib, model.device, **options) for _ in range(STREAMS - 1)]


def in_turns(function, sets):
    """A call of the function of one set of arguments after the other, again and again."""
    turns = cycle(sets)
    return lambda: function(*next(turns))


def images_a_second(calls, batch):
    """Of the first of these calls alone, or of all, each in a thread and a stream of its own."""
    for call in calls:
        common.wall_once(call)  # a CUDA graph is made while nothing else runs
    return max(batch * calls_a_second(calls[:number]) for number in {1, len(calls)})


def calls_a_second(calls):
    counts, ready = [0] * len(calls), threading.Barrier(len(calls) + 1)

    def work(at):
        with own_stream(), torch.no_grad():
            ready.wait()
            end = time.perf_counter() + SECONDS
            while counts[at] < 3 or time.perf_counter() < end:
                calls[at]()
                counts[at] += 1
            common.synchronize()

    threads = [threading.Thread(target=work, args=[at]) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def own_stream():
    return torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else contextlib.nullcontext()


def percentile_90_ms(call):
    end, times = time.perf_counter() + SECONDS, []
    while len(times) < 10 or time.perf_counter() < end:
        times.append(common.wall_once(call))
    return statistics.quantiles(times, n=10)[-1]


def psnr(found, wanted):
    """In decibels, of images whose values are 0 to 1."""
    error = (found.float() - wanted).square().mean().item()
    return -10 * math.log10(max(error, 1e-12))


if __name__ == "__main__":
    main()
