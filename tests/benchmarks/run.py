"""Run every benchmark that this machine can run, and write one report: `python -m tests.benchmarks.run`.

With an NVIDIA GPU, all of them run; without one, those that can time the CPU. One that fails, or takes too
long, does not stop the others; the exit status says whether any did. Each writes a file of its own to
`results/`; the report, `results/README.md`, is composed from all files there. `--compose` does only that.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from tests.benchmarks import _report
from topi_ext import cpu_target

import tvm

console = Console()


@dataclass
class Benchmark:
    """What a benchmark needs: modules, and a GPU unless these arguments make it time the CPU."""

    name: str
    modules: tuple = ()
    on_cpu: tuple = None
    minutes: float = 30  # that it may take, unless told otherwise

    def why_not(self, has_gpu):
        missing = [module for module in self.modules if importlib.util.find_spec(module) is None]
        if missing:
            return f"needs {' and '.join(missing)}"
        return "needs an NVIDIA GPU" if self.on_cpu is None and not has_gpu else None

    def command(self, has_gpu):
        arguments = () if has_gpu else self.on_cpu
        return [sys.executable, "-m", f"tests.benchmarks.bench_{self.name}", *arguments]


def benchmarks(target):
    """All of them, the quick ones first; `target` is the CPU."""
    on_cpu = ("--target", target)
    return [
        Benchmark("gpu_tests"),
        Benchmark("sort"),
        Benchmark("torch_calls", modules=("torchvision",), on_cpu=()),
        Benchmark("preprocess"),
        Benchmark("roi", modules=("torchvision",)),
        Benchmark("encode_masks", modules=("pycocotools",)),
        Benchmark("deformable_attention"),
        Benchmark("rasterize", modules=("cv2",), on_cpu=on_cpu),
        Benchmark("warp_affine", modules=("cv2",), on_cpu=on_cpu),
        Benchmark("grid_sample"),
        Benchmark("group_norm"),
        Benchmark("layer_norm"),
        Benchmark("max_pool", on_cpu=on_cpu),
        Benchmark("transposes"),
        Benchmark("attention"),
        Benchmark("nms", modules=("torchvision",), on_cpu=on_cpu),
        Benchmark("conv2d_nhwc"),
        Benchmark("subpixel", on_cpu=on_cpu),
        Benchmark("import", modules=("onnx", "torchvision"), on_cpu=()),
        Benchmark("serve", modules=("ray", "torchvision"), on_cpu=()),
        Benchmark("compile", modules=("torchvision",), on_cpu=()),
        Benchmark("zoo", modules=("torchvision",)),
        Benchmark("backbones", modules=("torchvision",)),
        Benchmark("super_resolution", modules=("spandrel",), on_cpu=on_cpu),
        Benchmark("models", modules=("torchvision", "transformers"), on_cpu=on_cpu, minutes=240),
        Benchmark("int8", modules=("torchvision",)),
        Benchmark("batch", modules=("torchvision", "pyarrow"), on_cpu=()),
        Benchmark("detection", modules=("torchvision",)),
        Benchmark("detection_batch", modules=("torchvision",)),
        Benchmark("detection_accuracy", modules=("torchvision",)),
        Benchmark("average_precision", modules=("torchvision", "pycocotools")),
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this one; may be given several times"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--compose", action="store_true", help="write the report of what is in results/ already"
    )
    parser.add_argument("--minutes", type=float, help="that each may take, instead of its own limit")
    parser.add_argument("--target", help="how TVM is to call this CPU, where there is no GPU")
    args = parser.parse_args(arguments)

    target = args.target or str(cpu_target())
    known = {benchmark.name: benchmark for benchmark in benchmarks(target)}
    unknown = set(args.only or ()) - set(known)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}, but there are {', '.join(known)}")
    chosen = [known[name] for name in args.only or known]
    if args.compose:
        print(_report.write())
        return 0
    has_gpu = torch.cuda.is_available() and tvm.cuda(0).exist
    outcomes = {each.name: each.why_not(has_gpu) or "can run" for each in chosen}
    if not args.list:
        print(f"On {torch.cuda.get_device_name(0) if has_gpu else target}.")
        able = [each for each in chosen if outcomes[each.name] == "can run"]
        for number, each in enumerate(able, 1):
            console.rule(f"{number} of {len(able)}: {each.name}")
            outcomes[each.name] = run(each.command(has_gpu), args.minutes or each.minutes)
    table = Table("benchmark", "")
    for row in outcomes.items():
        table.add_row(*row)
    console.print(table)
    if not args.list:
        print(_report.write())
    return int(any("failed" in outcome for outcome in outcomes.values()))


def run(command, minutes):
    """How a command ended; the command itself prints what it does."""
    start = time.monotonic()
    try:
        status = subprocess.run(command, timeout=minutes * 60).returncode
    except subprocess.TimeoutExpired:
        return f"failed: it took more than {minutes:g} minutes"
    seconds = f"{time.monotonic() - start:.0f} s"
    return f"done in {seconds}" if status == 0 else f"failed with status {status} after {seconds}"


if __name__ == "__main__":
    sys.exit(main())
