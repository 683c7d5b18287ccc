"""Whole networks on a GPU versus torch, and the kernels that are far from their floor, with the reasons."""

import json
import os
import re
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

import tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks._detector import autocast, median_wall_ms
from tests.benchmarks._kernels import Step, steps_of
from tests.benchmarks._models import ON_GPU, call_of
from tests.benchmarks.bench_zoo import in_time, measured_in_turn
from tests.zoo.outcome import imported

import tvm

MODULE = "tests.benchmarks.bench_models"
PEAK = 790e12  # operations a second of tensor cores, that a large matrix product reaches on an H200
SHARE, TIMES = 0.03, 3  # of the network's time, and of the floor, above which a kernel needs a reason
REPEATS = 50

SMALL_MAP = r"conv2d_nhwc \(1x\d{1,2}x\d{1,2}x"
REASONS = {  # by the kernel's name and the shapes of its first inputs
    r"conv2d_nhwc \(1x800x1344x3": "three channels take the place of eight: most products are of zeros",
    r"conv2d_nhwc \(1x540x960x256, 48x6x6": "a strided window reads each pixel nine times from shared memory",
    "multiscale_roi_align": "a bin is a mean of four samples of four pixels: it reads L2, not memory",
    "batched_nms": "boxes wait for the verdict on those before them: it is steps that count, not bytes",
    SMALL_MAP: "fewer tiles than multiprocessors, each of which sums thousands of products",
    r"conv2d_nhwc \(100x14x14x512, 68x3x3x512": "the filters fill half of the tile of cuDNN's plan",
    r"conv2d_nhwc \(1x300x300x64": "64 channels: the project's own kernel, at a third of the peak",
    r"conv2d_nhwc \(1x150x150x64": "the plan that cuDNN names first; runtime.tune may find a faster one",
    r"topk \(90x": "a block for each row of a few thousand, and few rows",
    "heatmaps_to_keypoints": "each pixel of a box is a bicubic sum of 16 products: arithmetic, not bytes",
}


TEXT = f"""Milliseconds from the call to the end of the work, by the host's clock, on images that are on the
GPU: the median of {REPEATS} calls. R50 is torchvision's network on images of 800x1333; SSDs get 640x640,
which they scale down; YOLO and RT-DETR have 640x640.
Ours is float16, replayed as a CUDA graph, with outputs cut to the valid detections. torch: eager in float32
and under autocast, in both layouts, and torch.compile of autocast; super-resolution networks are in float16.
Kernels: the number of launches, and the sum of their times. Floor: what the network's steps would take at the
speed of memory, or of {PEAK / 1e12:.0f} TFLOP/s, whichever is longer for each. Ready: seconds to import and
compile it, {{beside}} at once."""


def run(args):
    """Time the networks, and publish the results."""
    os.environ["MODES"] = args.modes
    os.environ["TUNE"] = "1" if args.tune else ""
    with tempfile.TemporaryDirectory() as folder:
        rows = measured_in_turn(args.names, Path(folder), args.seconds, MODULE)
    if not rows:
        sys.exit("None of these networks could be timed.")
    if args.add:
        rows = json.loads(args.add.read_text()) + rows
    if args.raw:
        args.raw.write_text(json.dumps(rows))
    bandwidth = common.copy_bandwidth()
    target = common.tensor_core_target("cudnn-frontend")
    facts = [common.environment(bandwidth, times=None), f"- Target: {target}"]
    text, slow = report(rows, bandwidth, len(args.names))
    common.publish("models", "Whole networks", "\n".join([*facts, "", text]))
    if any(not each[-1] for each in slow):
        sys.exit("Some of these kernels have no reason.")


def report(rows, bandwidth, beside):
    """The text of the report, and its rows of kernels that are far from their floor."""
    slow = [each for row in rows for each in far_from_floor(row, bandwidth)]
    parts = [
        TEXT.format(beside=beside),
        "",
        table(rows, bandwidth),
        "",
        f"## Kernels over {SHARE:.0%} of the time and {TIMES} times their floor",
        "",
        common.markdown_table(["", "ms", "times", "floor, ms", "reason"], slow) if slow else "None.",
    ]
    return "\n".join(parts), slow


def measure(name, to, deadline):
    """Prepare a network, say so, wait for a line on the standard input, and time it."""
    network, inputs = ON_GPU[name].build()
    start = time.monotonic()
    ours = prepared(name, network, inputs)
    seconds = time.monotonic() - start
    print(f"compiled in {seconds:.0f} s", flush=True)
    images = [each.cuda() for each in inputs]
    given = [each.half() for each in images] if ON_GPU[name].in_half else images
    if os.environ.get("TUNE"):
        tvm_passes.runtime.tune(ours, *given, processes=2)  # other networks do so at the same time
        print(f"tuned in {time.monotonic() - start - seconds:.0f} s more", flush=True)
    calls = peers(name, network.cuda().eval(), images, deadline)
    tvm_passes.runtime.Model(ours.lib, ours.device, cuda_graph=False)(*given)  # cuDNN's plans are made
    with torch.no_grad():
        for call in calls.values():
            call()
        to.with_suffix(".ready").touch()
        sys.stdin.readline()
        times = {peer: median_wall_ms(call, REPEATS) for peer, call in calls.items()}
    own = median_wall_ms(lambda: ours(*given), REPEATS)  # it chooses a CUDA graph, now that nothing else runs
    arrays = {name: tvm.nd.array(each.cpu().numpy()) for name, each in zip(ours.inputs, given)}
    _, steps = steps_of(ours.lib, tvm.cuda(0), **arrays)
    steps = [asdict(step) for step in steps.values()]
    to.write_text(json.dumps({"ours": own, "times": times, "seconds": seconds, "steps": steps}))


def prepared(name, network, inputs):
    target = common.tensor_core_target("cudnn-frontend")
    if ON_GPU[name].in_half:
        network, inputs = network.half(), [each.half() for each in inputs]
    mod = imported(network, inputs)
    if ON_GPU[name].pipeline == "subpixel":
        return tvm_passes.runtime.compile(
            tvm_passes.subpixel_pipeline(target)(mod), target, copy_outputs=False
        )
    mod = tvm_passes.detection_pipeline(target, outputs="padded")(mod)
    cut = "padded_rows" in (mod["main"].attrs or {})
    return tvm_passes.runtime.compile(mod, target, cut=cut, copy_outputs=False)


def peers(name, network, images, deadline):
    """{peer: a call of it}; torch.compile only where it is ready in time."""
    modes = os.environ.get("MODES", "none")
    if modes == "none":
        return {}
    half = ON_GPU[name].in_half
    if half:
        images = [each.half().to(memory_format=torch.channels_last) for each in images]
        network = network.half().to(memory_format=torch.channels_last)
    call = call_of(network, images)
    around = (lambda run: run) if half else autocast
    calls = (
        {"eager, float16": around(call)} if half else {"eager, float32": call, "eager, float16": around(call)}
    )
    with torch.no_grad():
        for mode in modes.split(","):
            compiled = partial(torch.compile(network, mode=mode), *call.args)
            ready = in_time(around(compiled), deadline - time.monotonic())
            if ready is not None:
                calls[f"torch.compile, {mode}"] = ready
    return calls


def far_from_floor(row, bandwidth):
    """The rows of the second table that are of this network: steps far from their floor."""
    steps = [Step(**each) for each in row["steps"]]
    total = sum(step.ms for step in steps)
    for step in steps:
        floor = step.floor_ms(bandwidth, PEAK)
        if step.ms > SHARE * total and step.ms > TIMES * floor:
            name = re.sub(r"_\d+$|_[0-9a-f]{16}_?", "", step.name)[:90]
            shapes = ", ".join("x".join(map(str, shape)) for shape, _ in step.inputs[:2])
            label = f"{name} ({shapes})"
            reason = next((why for which, why in REASONS.items() if re.search(which, label)), "")
            yield [f"{row['name']}: {label}", step.ms, f"{step.ms / floor:.0f}", floor, reason]


def table(rows, bandwidth):
    names = list(dict.fromkeys(peer for row in rows for peer in row["times"]))
    ratio = ["best torch / ours"] if names else []
    header = ["", "ours", *names, *ratio, "kernels", "sum", "floor", "ready, s"]
    cells = []
    for row in rows:
        steps = [Step(**each) for each in row["steps"]]
        times = row["times"]
        cells.append(
            [
                row["name"],
                f"{row['ours']:.2f}",
                *(f"{times[peer]:.2f}" if peer in times else "-" for peer in names),
                *(f"{min(times.values()) / row['ours']:.2f}" for _ in ratio),
                f"{sum(step.launches for step in steps)}",
                f"{sum(step.ms for step in steps):.2f}",
                f"{sum(step.floor_ms(bandwidth, PEAK) for step in steps):.2f}",
                f"{row['seconds']:.0f}",
            ]
        )
    return common.markdown_table(header, cells)
