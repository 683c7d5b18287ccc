"""Time the import and compilation of Mask R-CNN versus stock TVM, and until it is ready, by the clock.

`python -m tests.benchmarks.bench_compile` needs no GPU; nvcc compiles CUDA kernels. Each measurement runs in
a process of its own, one after the other. `--ready` measures only the second.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import torchvision
from rich.progress import track

import frontends
import tvm_passes
from tests.benchmarks import _common as common
from topi_ext import bootstrap, cpu_target
from topi_ext.bootstrap import user_cache
from tutorials.detectors import stock_import

import tvm
from tvm import relay

HEIGHT, WIDTH = 256, 320
CUDA = "cuda -arch=sm_90"
STOCK, OURS = "stock TVM", "ours"
STEPS = "import", "passes", "compile", "all"
READY_SIZE = 800, 1333
BATCHES = 1, 8
NOTE = f"""
Seconds of processor time, including nvcc's, which other work on the machine disturbs less than
wall-clock time. {STOCK}: its own importer, for the virtual machine, float32. {OURS} on the CPU:
`detection_pipeline`, for the virtual machine. {OURS} on CUDA: static shapes and float16, for the graph
executor; also with cuDNN, where it is installed. The corrections of TVM apply to both.
"""

READY_NOTE = """
Seconds by the clock, at {}x{}, for CUDA with cuDNN where it is installed: with an empty cache of kernels, and
again in another process, which finds them there.
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs=2, metavar=("WHO", "TARGET"), help="print the seconds of this alone")
    parser.add_argument("--ready", action="store_true", help="print only the times until a network is ready")
    parser.add_argument(
        "--until-ready", nargs=2, metavar=("BATCH", "CACHE"), help="print these seconds alone"
    )
    options = parser.parse_args()
    if options.only:
        print(json.dumps(seconds(*options.only)))
        return
    if options.until_ready:
        batch, cache = options.until_ready
        print(json.dumps(until_ready(int(batch), cache)))
        return
    if options.ready:
        print(f"{environment()}\n\n{ready()}")
        return
    cpu = str(cpu_target())
    pairs = list(dict.fromkeys([(cpu, cpu), (CUDA, CUDA), (CUDA, best_cuda())]))
    work = list(dict.fromkeys(each for pair in pairs for each in zip((STOCK, OURS), pair)))
    took = {each: in_a_process("--only", *each) for each in track(work)}
    rows = [
        [f"`{target}`: {step}", f"{theirs:.1f}", f"{ours:.1f}", f"{theirs / ours:.2f}" if theirs else "-"]
        for peers, target in pairs
        for step, theirs, ours in zip(STEPS, took[STOCK, peers], took[OURS, target])
    ]
    table = common.markdown_table(["", f"{STOCK}, s", f"{OURS}, s", f"{STOCK} / {OURS}"], rows)
    text = "\n\n".join([environment(), NOTE.strip(), table, ready()])
    common.publish("compile", "Compiling Mask R-CNN", text, machine="")


def best_cuda():
    return f"{CUDA} -libs=cudnn-frontend" if importlib.util.find_spec("cudnn") else CUDA


def ready():
    """The table of the seconds until a network is ready."""
    rows = []
    for batch in track(BATCHES):
        with tempfile.TemporaryDirectory() as cache:
            times = [in_a_process("--until-ready", str(batch), cache) for _ in range(2)]
        rows += [
            [f"batch {batch}: {step}", f"{first:.1f}", f"{again:.1f}"]
            for step, first, again in zip(STEPS, *times)
        ]
    table = common.markdown_table(["", "first, s", "again, s"], rows)
    return f"## Until it is ready\n{READY_NOTE.format(*READY_SIZE)}\n{table}"


def in_a_process(*arguments):
    run = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_compile", *arguments]
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{' '.join(arguments)} failed")
    return json.loads(done.stdout.splitlines()[-1])


def until_ready(batch, cache):
    """The seconds by the clock that each of the STEPS takes, with kernels cached in that folder."""
    os.environ[user_cache.SWITCH] = cache
    example = [torch.rand(3, *READY_SIZE) for _ in range(batch)]
    model, clock = maskrcnn(*READY_SIZE), [time.perf_counter()]
    mod, params = frontends.from_pytorch(model, example)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    clock.append(time.perf_counter())
    mod = tvm_passes.detection_pipeline(best_cuda(), outputs="padded")(mod)
    clock.append(time.perf_counter())
    tvm_passes.runtime.build_library(mod, best_cuda())
    clock.append(time.perf_counter())
    return between(clock)


def between(clock):
    """What each step took, and all of them."""
    return [*(after - before for before, after in zip(clock, clock[1:])), clock[-1] - clock[0]]


def maskrcnn(height, width):
    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    model.transform.min_size, model.transform.max_size = (height,), width
    return model


def seconds(who, target):
    """The seconds that each of the STEPS takes."""
    model = maskrcnn(HEIGHT, WIDTH)
    image = torch.rand(3, HEIGHT, WIDTH)
    clock = [processor_time()]
    if who == STOCK:
        mod, params = stock_import(model, image[None])
        clock += [processor_time()] * 2
        build = relay.vm.compile
    else:
        mod, params = frontends.from_pytorch(model, image)
        mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
        clock.append(processor_time())
        on_cuda = target.startswith("cuda")
        mod = tvm_passes.detection_pipeline(target, outputs="padded" if on_cuda else "dynamic")(mod)
        clock.append(processor_time())
        params, build = None, relay.build if on_cuda else relay.vm.compile
    with tvm.transform.PassContext(opt_level=3):
        build(mod, target=tvm.target.Target(target), params=params)
    clock.append(processor_time())
    return between(clock)


def processor_time():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def environment():
    facts = {
        "Model": f"maskrcnn_resnet50_fpn of torchvision {torchvision.__version__}, {HEIGHT}x{WIDTH}",
        "TVM": bootstrap.tvm_in_use.version,
        "nvcc": common.nvcc_version(),
        "Machine": f"{common.cpu_name()}, {len(os.sched_getaffinity(0))} cores, shared",
        "Times": "one run each, in a process of its own",
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


if __name__ == "__main__":
    main()
