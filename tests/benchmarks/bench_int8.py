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
from collections import Counter
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
from tests.benchmarks._kernels import Step, steps_of
from tests.benchmarks._models import call_of, of_super_resolution, of_torchvision
from tests.benchmarks._models_on_gpu import PEAK
from tests.benchmarks._quantized import calibrated, compiled, made_once
from tests.benchmarks.bench_zoo import in_time, measured_in_turn
from tests.models.shapes import drawn, train_to_enlarge
from tests.models.zoo import random_image, retinanet_of_mlperf, tiny_detector, tiny_mask_rcnn
from tests.zoo.outcome import imported
from tvm_passes.runtime.arrays import is_cuda

import tvm

MODULE = "tests.benchmarks.bench_int8"
OURS = "int8", "float16"
THROUGHPUT, LATENCY, QUALITY, GAIN = "images/s", "p90, ms", "PSNR, dB", "times float16"
SECONDS = 2  # that each is timed for
STREAMS = 2  # at most, of those who compute batches at once
SCALE, SHAPES = 4, 25  # of super-resolution, and in an image of it
CANDIDATES = 1000  # that the NMS of MLPerf's network gets at least
LAYERS = 40  # of a network, in the table


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


RETINANET, MASK_RCNN = "MLPerf's RetinaNet ResNeXt50, 800x800", "Mask R-CNN R50, 800x1333"
EDSR, THREAD = "EDSR-baseline x4, 540x960", "Sub-pixel network of apache/tvm #4523, 720x1280"
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
BARS = {
    (RETINANET, 0, "int8", THROUGHPUT): (1000, 1924),
    (RETINANET, 0, "float16", THROUGHPUT): (600, 900),
    (RETINANET, 1, "int8", LATENCY): (1.9, 1.5),
    (MASK_RCNN, 8, "int8", THROUGHPUT): (1000, 1400),
    (MASK_RCNN, 1, "int8", LATENCY): (1.5, 1.1),
    **{
        (name, 1, "int8", figure): (bar, bar)
        for name in (EDSR, THREAD)
        for figure, bar in ((GAIN, 1.5), (QUALITY, 45.0))
    },
}

TEXT = f"""## Images a second

As in MLPerf's offline scenario: all images are in GPU memory, in float32, at their size, and batches of them
follow one another for {SECONDS} seconds, two different ones in turn. Counted is everything from the images
to the final detections, cut to their number, which the host waits for after each batch: normalization, the
network, NMS, and for Mask R-CNN the pasted masks. One thread does so, or {STREAMS}, each with a stream and a
network of its own, whichever is faster. Ours is replayed as a CUDA graph. torch is float16, with
weights in channels_last. Weights are seeded; candidates: the boxes that the last NMS gets, an image. For
comparison, TensorRT has 1,877 images/s on an H200 for MLPerf's network in int8, as submitted to MLPerf."""

LATENCIES = """## One image at a time

Milliseconds from the call to the end of the work, by the host's clock: the 90th percentile, as in MLPerf's
scenario of a single stream."""

QUALITIES = """## What super-resolution loses

PSNR versus torch in float32, in dB, where values are 0 to 1. The networks were trained here for a minute to
enlarge drawn shapes."""

PER_LAYER = f"""## Layers

Convolutions of equal shapes together, at the largest batch: how many there are, and of those in int8 how
many; their milliseconds, TFLOP/s, and floor, which is the time for their bytes or for their operations at
{PEAK / 1e12:.0f} TFLOP/s, twice as many in int8, whichever is longer. The {LAYERS} that take the longest are
listed, then all else together."""


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


# --- the report


def report(rows, bandwidth):
    parts = [TEXT, throughputs(rows), LATENCIES, latencies(rows)]
    if any(QUALITY in row["figures"]["int8"] for row in rows):
        parts += [QUALITIES, qualities(rows)]
    parts += [PER_LAYER]
    for row in largest_of_each(rows):
        parts += [f"### {row['name']}, batch {row['batch']}", layers(row, bandwidth), reasons(row)]
    return "\n\n".join([*parts, "## Bars", bars(rows)])


def throughputs(rows):
    who = list(dict.fromkeys(each for row in rows for each in row["figures"]))
    header = ["", *(f"{each}, {THROUGHPUT}" for each in who), "int8 / best torch", "candidates", "ready, s"]
    cells = []
    for row in rows:
        found = {each: figures[THROUGHPUT] for each, figures in row["figures"].items()}
        torchs = [figure for each, figure in found.items() if each not in OURS]
        cells.append(
            [
                f"{row['name']}, batch {row['batch']}",
                *(f"{found[each]:.0f}" if each in found else "-" for each in who),
                f"{found['int8'] / max(torchs):.2f}" if torchs else "-",
                "" if row["candidates"] is None else f"{row['candidates']:,}",
                f"{row['seconds']:.0f}",
            ]
        )
    return common.markdown_table(header, cells)


def latencies(rows):
    found = {
        row["name"]: {who: figures[LATENCY] for who, figures in row["figures"].items()}
        for row in rows
        if row["batch"] == 1
    }
    who = list(dict.fromkeys(each for figures in found.values() for each in figures))
    cells = [
        [name, *(f"{figures[each]:.2f}" if each in figures else "-" for each in who)]
        for name, figures in found.items()
    ]
    return common.markdown_table(["", *who], cells)


def qualities(rows):
    rows = [row for row in rows if QUALITY in row["figures"]["int8"]]
    cells = [[row["name"], *(f"{row['figures'][dtype][QUALITY]:.1f}" for dtype in OURS)] for row in rows]
    return common.markdown_table(["", *OURS], cells)


def largest_of_each(rows):
    return {row["name"]: row for row in sorted(rows, key=lambda row: row["batch"])}.values()


class Layers:
    """Convolutions of equal shapes, in one of the types."""

    def __init__(self, steps=()):
        self.steps = list(steps)

    @property
    def in_int8(self):
        return sum(step.inputs[0][1] == "int8" for step in self.steps)

    @property
    def ms(self):
        return sum(step.ms for step in self.steps)

    def cells(self, bandwidth):
        """Milliseconds, TFLOP/s and the floor."""
        if not self.steps:
            return ["-"] * 3
        operations = sum(step.operations for step in self.steps)
        floor = sum(step.floor_ms(bandwidth, PEAK) for step in self.steps)
        return [self.ms, f"{operations / self.ms / 1e9:.0f}" if operations else "", floor]


def layers(row, bandwidth):
    """A table of the convolutions of a network, the slowest first."""
    found = {dtype: by_shape(row["steps"][dtype]) for dtype in OURS}
    labels = dict.fromkeys(label for dtype in OURS for label in found[dtype])
    both = {label: [found[dtype].get(label, Layers()) for dtype in OURS] for label in labels}
    other = both.pop("", [Layers()] * len(OURS))
    ranked = sorted(both.items(), key=lambda item: -max(each.ms for each in item[1]))
    for _, of_both in ranked[LAYERS:]:
        other = [Layers(each.steps + more.steps) for each, more in zip(other, of_both)]
    whole = [Layers(Step(**each) for each in row["steps"][dtype]) for dtype in OURS]
    cells = [
        [label, f"{max(len(each.steps) for each in types)}", f"{types[0].in_int8}"]
        + [cell for each in types for cell in each.cells(bandwidth)]
        for label, types in [*ranked[:LAYERS], ("all else", other), ("all", whole)]
    ]
    header = ["data, filters", "layers", "in int8"]
    header += [f"{dtype}, {unit}" for dtype in OURS for unit in ("ms", "TFLOP/s", "floor")]
    return common.markdown_table(header, cells)


def by_shape(steps):
    """{"data, filters": Layers} of convolutions; "" has all else."""
    found = {}
    for step in (Step(**each) for each in steps):
        is_convolution = "conv2d_nhwc" in step.name
        shapes = ["x".join(map(str, shape)) for shape, _ in step.inputs[:2]]
        found.setdefault(", ".join(shapes) if is_convolution else "", Layers()).steps.append(step)
    return found


def reasons(row):
    """Why convolutions are not in int8, as a list."""
    counts = Counter(row["reasons"]).most_common()
    return "\n".join(f"- {count} not in int8: {reason}" for reason, count in counts) or "All are in int8."


def bars(rows):
    """A table of what was asked for, and what was measured."""
    cells = []
    for which, (bar, goal) in BARS.items():
        name, batch, dtype, figure = which
        measured = figure_of(rows, *which)
        reached = "-" if measured is None else "no"
        if measured is not None and reaches(measured, bar, figure):
            reached = "goal" if reaches(measured, goal, figure) else "bar"
        label = f"{name}, batch {batch or 'any'}, {dtype}: {figure}"
        cells.append(
            [label, f"{bar:,}", f"{goal:,}", "-" if measured is None else f"{measured:,.2f}", reached]
        )
    return common.markdown_table(["", "bar", "goal", "measured", "reached"], cells)


def missed(rows):
    """The bars that were measured and missed, and MLPerf's network if too little reaches its NMS."""
    found = []
    for which, (bar, _) in BARS.items():
        measured = figure_of(rows, *which)
        if measured is not None and not reaches(measured, bar, which[-1]):
            found.append(f"{which[0]} has {measured:.2f} {which[-1]} in {which[2]}, not {bar}")
    for row in rows:
        if row["name"] == RETINANET and row["candidates"] < CANDIDATES:
            found.append(f"the NMS of {RETINANET} gets {row['candidates']} boxes, not {CANDIDATES}")
    return found


def reaches(measured, wanted, figure):
    return measured <= wanted if figure == LATENCY else measured >= wanted


def figure_of(rows, name, batch, dtype, figure):
    """The best that was measured, or None."""
    found = [row["figures"] for row in rows if row["name"] == name and batch in (0, row["batch"])]
    if figure == GAIN:
        values = [each["int8"][THROUGHPUT] / each["float16"][THROUGHPUT] for each in found]
    else:
        values = [each[dtype][figure] for each in found if figure in each.get(dtype, {})]
    best = min if figure == LATENCY else max
    return best(values, default=None)


if __name__ == "__main__":
    main()
