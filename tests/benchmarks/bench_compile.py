"""Time the import and compilation of Mask R-CNN versus stock TVM.

`python -m tests.benchmarks.bench_compile` needs no GPU; nvcc compiles CUDA kernels. Each measurement runs in
a process of its own, one after the other.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys

import torch
import torchvision
from rich.progress import track

import frontends
import tvm_passes
from tests.benchmarks import _common as common
from topi_ext import bootstrap, cpu_target
from tutorials.detectors import stock_import

import tvm
from tvm import relay

HEIGHT, WIDTH = 256, 320
CUDA = "cuda -arch=sm_90"
STOCK, OURS = "stock TVM", "ours"
STEPS = "import", "passes", "compile", "all"
NOTE = f"""
Seconds of processor time, including nvcc's, which other work on the machine disturbs less than
wall-clock time. {STOCK}: its own importer, for the virtual machine, float32. {OURS} on the CPU:
`detection_pipeline`, for the virtual machine. {OURS} on CUDA: static shapes and float16, for the graph
executor; also with cuDNN, where it is installed. The corrections of TVM apply to both.
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs=2, metavar=("WHO", "TARGET"), help="print the seconds of this alone")
    only = parser.parse_args().only
    if only:
        print(json.dumps(seconds(*only)))
        return
    cpu = str(cpu_target())
    pairs = [(cpu, cpu), (CUDA, CUDA)]
    if importlib.util.find_spec("cudnn"):
        pairs.append((CUDA, f"{CUDA} -libs=cudnn-frontend"))
    work = list(dict.fromkeys(each for pair in pairs for each in zip((STOCK, OURS), pair)))
    took = {each: in_a_process(*each) for each in track(work)}
    rows = [
        [f"`{target}`: {step}", f"{theirs:.1f}", f"{ours:.1f}", f"{theirs / ours:.2f}" if theirs else "-"]
        for peers, target in pairs
        for step, theirs, ours in zip(STEPS, took[STOCK, peers], took[OURS, target])
    ]
    table = common.markdown_table(["", f"{STOCK}, s", f"{OURS}, s", f"{STOCK} / {OURS}"], rows)
    text = "\n\n".join([environment(), NOTE.strip(), table])
    common.publish("compile", "Compiling Mask R-CNN", text, machine="")


def in_a_process(who, target):
    run = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_compile", "--only", who, target]
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{who} for {target} failed")
    return json.loads(done.stdout.splitlines()[-1])


def seconds(who, target):
    """The seconds that each of the STEPS takes."""
    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    model.transform.min_size, model.transform.max_size = (HEIGHT,), WIDTH
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
    return [*(after - before for before, after in zip(clock, clock[1:])), clock[-1] - clock[0]]


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
