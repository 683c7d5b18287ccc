"""What every benchmark needs: a GPU, one clock for TVM and torch, a table, and the facts about a measurement.

A benchmark is a script: `python -m tests.benchmarks.bench_sort` on a machine with an NVIDIA GPU. It checks
its results before it times them, and writes its table to `results/`, named after the card.
"""

import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from ctypes import c_void_p
from datetime import datetime, timezone
from pathlib import Path

import torch

from topi_ext import bootstrap

import tvm

RESULTS = Path(__file__).with_name("results")
WARM_UP, REPEATS = 10, 50
QUEUE_CYCLES = 3_000_000  # the GPU sleeps for about this long while the host queues the work to be timed


def require_gpu() -> None:
    """Exit with a message if there is no GPU; otherwise, make TVM use torch's stream."""
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs an NVIDIA GPU that torch can use; none was found.")
    if not tvm.cuda(0).exist:
        sys.exit("torch finds a GPU but TVM does not: libtvm.so was loaded without the NVIDIA driver.")
    tvm.cuda(0).set_raw_stream(c_void_p(torch.cuda.current_stream().cuda_stream))  # an int would be cut


def median_ms(run) -> float:
    """The median time on the device of what `run` queues, in milliseconds.

    The GPU is kept busy until all of it is queued, so the host's time is not measured.
    """
    for _ in range(WARM_UP):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for start, end in events:
        torch.cuda._sleep(QUEUE_CYCLES)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


@contextmanager
def float32_convolutions():
    """Make cuDNN multiply float32 as it is; torch lets it round to 10 bits, as in float16."""
    cudnn = torch.backends.cudnn
    with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False):
        yield


def copy_bandwidth() -> float:
    """Bytes per second that a large copy on the device reads and writes, which no kernel can beat by much."""
    source = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (median_ms(lambda: target.copy_(source)) * 1e-3)


def compile_for_gpu(function, *inputs, target="cuda"):
    """A Relay function as a graph module with these torch tensors as inputs; call `.run()`."""
    from tvm import relay
    from tvm.contrib import graph_executor

    library = relay.build(tvm.IRModule.from_expr(function), tvm.target.Target(target, host="llvm"))
    module = graph_executor.GraphModule(library["default"](tvm.cuda(0)))
    for i, value in enumerate(inputs):
        module.set_input(i, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(value)))
    return module


def tensor_core_target(libraries=""):
    """The target of this GPU; `libraries` such as "cudnn-frontend"."""
    major, minor = torch.cuda.get_device_capability()
    libs = f" -libs={libraries}" if libraries else ""
    return tvm.target.Target(f"cuda -arch=sm_{major}{minor}{libs}", host="llvm")


def outputs_of(module):
    """The outputs as torch tensors, without a copy."""
    count = module.get_num_outputs()
    return [torch.utils.dlpack.from_dlpack(module.get_output(i).to_dlpack()) for i in range(count)]


def card() -> str:
    return torch.cuda.get_device_name(0)


ON_DEVICE = f"median of {REPEATS} on the device, in ms, after {WARM_UP} to warm up"


def environment(bandwidth, times=ON_DEVICE) -> str:
    """The facts about a measurement, as a Markdown list; `times` is None where the text explains them."""
    facts = {
        "GPU": card(),
        "Host": f"{cpu_name()}, {os.cpu_count()} threads",
        "Copy bandwidth, measured": f"{bandwidth / 1e12:.2f} TB/s",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "TVM": f"{bootstrap.tvm_in_use.version}, kernels by nvcc {nvcc_version()}",
        "Times": times,
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items() if fact)


def markdown_table(header, rows) -> str:
    """A table whose columns are as wide as their cells; all but the first hold numbers."""
    rows = [[cell if isinstance(cell, str) else f"{cell:.3f}" for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells):
        first, *numbers = cells
        padded = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(map(line, [header, ruler, *rows]))


def publish(name, title, text, machine=None) -> Path:
    """Print a report, which begins with a list of facts, and write it to `results/<name>-<machine>.md`.

    The machine is the card, unless another is given; "" leaves it out of the name.
    """
    facts = {"Commit": commit(), "Command": f"`{command()}`", "Date": today()}
    said = "".join(f"- {name}: {fact}\n" for name, fact in facts.items())
    report = f"# {title}\n\n{said}{text.strip()}\n"
    print(report)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{'-'.join(filter(None, [name, slug(card() if machine is None else machine)]))}.md"
    path.write_text(report)
    print(f"written to {path}")
    return path


def commit() -> str:
    """The commit of the measured code, by git or, in a copy without a repository, by the variable COMMIT."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=RESULTS, capture_output=True, text=True
    )
    return os.environ.get("COMMIT") or described.stdout.strip() or "(unknown)"


def command() -> str:
    """The command that is running."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    return shlex.join(
        ["python", "-m", module.name if module else Path(sys.argv[0]).stem, *map(_by_name, sys.argv[1:])]
    )


def _by_name(argument: str) -> str:
    """Where files lie on a machine is of no use on another."""
    return Path(argument).name if argument.startswith("/") else argument


def cpu_ms(run):
    def once():
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    trial = min(once() for _ in range(3))
    return statistics.median(once() for _ in range(max(5, min(50, int(2000 / trial)))))


def wall_ms(run, repeats=20):
    """The mean time until the GPU is done, by the host's clock, after one run to warm up."""
    run()
    return statistics.mean(wall_once(run) for _ in range(repeats))


def synchronize():
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wall_once(run):
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return (time.perf_counter() - start) * 1e3


def median_wall_ms(run, repeats):
    """The median time until the GPU is done, by the host's clock."""
    for _ in range(5):
        run()
    return statistics.median(wall_once(run) for _ in range(repeats))


def cpu_name():
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def today():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def nvcc_version():
    if not shutil.which("nvcc"):
        return "(none; NVRTC)"
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    return found.group(1) if found else "(unknown)"
