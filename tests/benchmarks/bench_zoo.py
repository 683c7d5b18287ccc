"""Time detectors of the zoo in float16 versus torch: `python -m tests.benchmarks.bench_zoo`.

Those of packages that are not installed are left out. Each is prepared in a process of its own, all at once;
when all are ready, or the time for it is over, they are timed one after the other.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch

import tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks._detector import autocast, median_wall_ms
from tests.benchmarks.timing import at_most
from tests.models.zoo import detection_model, random_image
from tests.zoo.models import MODELS
from tests.zoo.outcome import as_rows, imported, share_of, tensors_of

SIZE = 640  # of the image that torchvision's get, which they scale to 800, or 300 or 320 for an SSD
TOLERANCE = 0.02  # absolute, and of the number
TEXT = f"""Detectors of the zoo (`docs/models.md`) whose networks are in torch, on one image, which is on the
GPU. Milliseconds from the call to the end of the work, by the host's clock: the median of {common.REPEATS}
calls. Ours is float16 with static shapes, replayed as a CUDA graph, its outputs cut to the valid
detections; float16 of torch is autocast, and `torch.compile` is of autocast too. Found: how many of the
detections of torch in float32 are found, to {TOLERANCE} of each number and the same class, by ours and by
autocast; where weights are random, close scores swap."""


def main():
    args = parser(__doc__, "models with this in their name or package").parse_args()
    warnings.simplefilter("ignore")
    if args.one:
        measure(args.one, args.to, time.monotonic() + args.seconds)
        return
    facts, rows = facts_and_rows(chosen(args.only), args.seconds)
    common.publish("zoo", "Detectors of the zoo", "\n".join([*facts, "", TEXT, "", table(rows)]))


def parser(doc, only):
    """What benchmarks have whose networks are each prepared in a process of its own."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--only", action="append", help=only)
    result.add_argument("--seconds", type=float, default=400, help="to prepare them; %(default)s")
    result.add_argument("--one", help=argparse.SUPPRESS)
    result.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    return result


def facts_and_rows(names, seconds, module="tests.benchmarks.bench_zoo"):
    """Where these networks were timed, and what was found; ends the process where none could be."""
    common.require_gpu()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured_in_turn(names, Path(folder), seconds, module)
    if not rows:
        sys.exit("None of these networks could be timed.")
    target = common.tensor_core_target("cudnn-frontend")
    return [common.environment(common.copy_bandwidth(), times=None), f"- Target: {target}"], rows


def chosen(only):
    """All detectors but Ultralytics', which come as ONNX files."""
    detectors = {name: each for name, each in MODELS.items() if each.is_detector}
    names = [name for name, each in detectors.items() if each.package != "ultralytics"]
    return [name for name in names if not only or any(f in f"{MODELS[name].package} {name}" for f in only)]


def measured_in_turn(names, folder, seconds, module="tests.benchmarks.bench_zoo", options=()):
    """What the processes of these models say, in their order; each runs `module` with `--one`."""
    processes = {}
    # Each example is run by torch on CPUs: with all of them, the processes would wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // len(names)))}
    for at, name in enumerate(names):
        to = folder / f"{at}.json"
        command = [sys.executable, "-m", module, "--one", name, "--to", str(to)]
        command += ["--seconds", str(seconds), *options]
        log = (folder / f"{at}.log").open("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": log, "stderr": subprocess.STDOUT}
        processes[name] = subprocess.Popen(command, text=True, env=environment, **pipes), to, log
    deadline = time.monotonic() + seconds + 30
    left = list(names)
    while left and time.monotonic() < deadline:
        left = [name for name in left if processes[name][0].poll() is None and not ready(processes[name][1])]
        time.sleep(0.2)
    for name in left:  # else they would slow down what is timed
        processes[name][0].kill()
    rows = []
    for name, (process, to, log) in processes.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate("go\n" if ready(to) else None, timeout=60 if ready(to) else 0.1)
        process.kill()
        if to.exists():
            rows.append({"name": name, **json.loads(to.read_text())})
        log.seek(0)
        last = (log.read().strip().splitlines() or ["nothing was printed"])[-1]
        print(f"{name}: {rows[-1] if to.exists() else last}", flush=True)
    return rows


def ready(to):
    return to.with_suffix(".ready").exists()


def measure(name, to, deadline):
    """Prepare a model, say so, wait for a line on the standard input, and time it."""
    network, inputs = network_of(name)
    start = time.monotonic()
    mod = imported(network, inputs)
    target = common.tensor_core_target("cudnn-frontend")
    static = tvm_passes.detection_pipeline(target, outputs="padded")(mod)
    cut = "padded_rows" in (static["main"].attrs or {})
    ours = tvm_passes.runtime.compile(static, target, cut=cut, copy_outputs=False)
    seconds = time.monotonic() - start
    print(f"compiled in {seconds:.0f} s", flush=True)
    network, images = network.cuda().eval(), [each.cuda() for each in inputs]
    call = partial(network, images if type(network).__module__.startswith("torchvision") else images[0])
    calls = {"eager, float32": call, "eager, float16": autocast(call)}
    with torch.no_grad():
        with common.float32_convolutions():
            wanted = as_rows(tensors_of(call()))
        by_autocast = share_of(wanted, as_rows(tensors_of(calls["eager, float16"]())), TOLERANCE)
        by_ours = share_of(wanted, as_rows(tensors_of(ours(*images))), TOLERANCE)
        by_compiler = compiled(call, deadline - time.monotonic())
        if by_compiler is not None:
            calls["torch.compile"] = by_compiler
        to.with_suffix(".ready").touch()
        sys.stdin.readline()
        times = {peer: median_wall_ms(run, common.REPEATS) for peer, run in calls.items()}
        own = median_wall_ms(lambda: ours(*images), common.REPEATS)
    found = {"detections": len(wanted), "by_ours": by_ours, "by_autocast": by_autocast}
    to.write_text(json.dumps({"ours": own, "times": times, "seconds": seconds, **found}))


def network_of(name):
    if MODELS[name].package != "torchvision":
        return MODELS[name].build()
    return detection_model(name), [random_image(SIZE, SIZE)]


def compiled(call, seconds):
    """The call under autocast as `torch.compile` has it; None if that is not ready in time, or fails."""
    return in_time(autocast(partial(torch.compile(call.func), *call.args)), seconds)


def in_time(run, seconds):
    """A call that compiles at first, once it has; None if that is not ready in time, or fails."""
    try:
        with at_most(seconds):
            for _ in range(3):
                run()
    except Exception as error:  # whatever its compiler stops at, the others are still timed
        print(f"torch.compile: {error}")
        return None
    return run


def table(rows):
    peers = ["eager, float32", "eager, float16", "torch.compile"]
    header = [
        "",
        "ours",
        *peers,
        "best torch / ours",
        "detections",
        "found by ours",
        "by autocast",
        "ready, s",
    ]
    cells = []
    for row in rows:
        times = row["times"]
        cells.append(
            [
                f"{row['name']} ({MODELS[row['name']].package})",
                f"{row['ours']:.2f}",
                *(f"{times[peer]:.2f}" if peer in times else "-" for peer in peers),
                f"{min(times.values()) / row['ours']:.1f}",
                str(row["detections"]),
                f"{row['by_ours']:.1%}",
                f"{row['by_autocast']:.1%}",
                f"{row['seconds']:.0f}",
            ]
        )
    ratio = statistics.median(float(row[5]) for row in cells)
    text = f"The median of {len(cells)} models: {ratio:.1f} times as fast."
    return f"{common.markdown_table(header, cells)}\n\n{text}"


if __name__ == "__main__":
    main()
