"""Whole networks on a CPU versus their peers, in one process for each network and number of threads."""

import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

import torch
from torch.utils.flop_counter import FlopCounterMode

import topi_ext
import tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks._models import ON_CPU, call_of
from tests.benchmarks._peers import COMPILED, OPSET, OURS, PEERS, RUNNERS, STOCK, Case, named, off_by
from tests.benchmarks.timing import CLOCKS, QUICK, at_most, in_turn, once
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.errors import one_line
from tvm_passes.runtime.profiling import ms_by_kind

MODULE = "tests.benchmarks.bench_models"
SECONDS, ROUNDS = 60, (5, 30)  # to time a network for, and the least and most rounds
MATRIX = 2048  # the side of the matrices whose product may be the peak
CHANNELS, PIXELS = 512, 48  # of the convolution of 3x3 that may be it
SAME = {"detection": 0.05, "subpixel": 1e-3}  # by how much the same results may be off: see `off_by`
IN_HALF = 1.5  # the part of what torch itself is off by, in a smaller type, that is added to this
OTHER_ORDER = "torch channels_last"  # whose sums are rounded in another order
IN_OTHER_ORDER = 1.0  # the part of what that is off by, that is added for all others
BEST = "best peer / ours"


@dataclass
class Row:
    """What is measured of a network; `ms` and `peak` are by clock, and all else by who runs it."""

    name: str
    threads: int
    detections: int
    operations: int  # of convolutions and matrix products: two for a multiply-add
    peak: dict  # {clock: the operations a second that torch reaches}
    ms: dict = field(default_factory=lambda: {clock: {} for clock in CLOCKS})
    off: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)  # until the first call is done
    reasons: dict = field(default_factory=dict)  # why it could not be timed
    kinds: dict = field(default_factory=dict)  # {kind of kernel: ms} of what TVM runs, by its profiler

    @property
    def is_same(self):
        """{who runs it: whether it computes what torch in float32 does, as nearly as its type lets torch}"""
        limit = SAME[ON_CPU[self.name].pipeline] + IN_HALF * self.off.get("torch", 0.0)
        more = IN_OTHER_ORDER * self.off.get(OTHER_ORDER, 0.0)
        return {who: off <= limit + more * (who != OTHER_ORDER) for who, off in self.off.items()}

    def floor(self, clock):
        return self.operations / self.peak[clock] * 1e3

    def ratio(self, clock):
        """How many times faster ours is than the best peer."""
        peers = [ms for who, ms in self.ms[clock].items() if who != OURS]
        return min(peers) / self.ms[clock][OURS] if peers and OURS in self.ms[clock] else None


def run(args):
    """Measure the networks, as many at once as there are places for, and publish the results."""
    target = str(topi_ext.cpu_target()) if args.target == "native" else args.target
    peers = [*args.peers.split(","), *([STOCK] if args.stock else [])]
    unknown = [peer for peer in peers if peer not in RUNNERS]
    if unknown:
        sys.exit(f"There is no peer {', '.join(unknown)}, but there are {', '.join(PEERS)}.")
    if args.dtype != "float32" and "torch" not in peers:
        sys.exit(f"How far off {args.dtype} may be is judged by torch: name it among the peers.")
    options = ["--target", target, "--dtype", args.dtype, "--peers", ",".join(peers)]
    options += ["--seconds", str(args.seconds)]
    counts = [int(count) for count in args.threads.split(",")]
    places = Queue()
    for cores in cores_apart(args.at_once, max(counts)):
        places.put(cores)
    with ThreadPoolExecutor(args.at_once) as pool:
        works = [(name, threads) for threads in counts for name in args.names]
        found = [*pool.map(lambda work: measured(*work, options, places), works)]
    rows = [row for row in found if row]
    if args.raw:
        args.raw.write_text(json.dumps([asdict(row) for row in rows]))
    if not rows:
        sys.exit("None of these networks could be timed.")
    publish(rows, target, args.dtype)
    wrong = [row.name for row in rows if not row.is_same.get(OURS, False)]
    if wrong or len(rows) < len(found):
        wrong = ", ".join(dict.fromkeys(wrong)) or "those without a row"
        sys.exit(f"Ours fails, or does not compute what torch does: {wrong}.")


def cores_apart(places, threads):
    """For each of the places, numbers of as many processors that share no core with others; for one, None."""
    if places == 1:
        return [None]
    free = sorted(os.sched_getaffinity(0))
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    of_core = {Path(topology.format(number)).read_text(): number for number in reversed(free)}
    free = sorted(of_core.values())
    if len(free) < places * threads:
        sys.exit(f"There are {len(free)} cores, too few for --at-once {places} with {threads} threads each.")
    return [free[at * threads : (at + 1) * threads] for at in range(places)]


def measured(name, threads, options, places):
    """The `Row` of a network, from a process that has so many threads; None if it stops."""
    cores = places.get()
    try:
        return measured_on(cores and cores[:threads], name, threads, options)
    finally:
        places.put(cores)


def measured_on(cores, name, threads, options):
    """The same on these processors, or on whatever is free."""
    with tempfile.TemporaryDirectory() as folder:
        to, cache = Path(folder) / "row.json", Path(folder) / "inductor"
        # The libraries read these as they are loaded. A compiler's cache would hide the time that it takes.
        count = {f"{of}_NUM_THREADS": str(threads) for of in ("OMP", "MKL", "TVM")}
        environment = {**os.environ, **count, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        command = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        command += [sys.executable, "-m", MODULE, *options, "--threads", str(threads)]
        command += ["--one", name, "--to", str(to)]
        log = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout
        row = Row(**json.loads(to.read_text())) if to.exists() else None
    last = (log.strip().splitlines() or ["nothing was printed"])[-1]
    print(f"{name}, {threads} threads: {row.ms['processor'] if row else last}", flush=True)
    return row


@torch.no_grad()
def measure(name, args):
    """Time a network in this process, and write its `Row`."""
    of = ON_CPU[name]
    with tempfile.TemporaryDirectory() as folder:
        case = Case(*of.build(), args.target, Path(folder), of.pipeline, args.dtype, int(args.threads))
        detections = 0 if of.pipeline == "subpixel" else len(next(iter(case.expected.values())))
        row = Row(name, case.threads, detections, operations_of(case), peak_of(args.dtype))
        calls = ready([OURS, *args.peers.split(",")], case, row, args.seconds)
        if calls:
            seconds = sum(once(call)["wall"] for call in calls.values()) / 1e3
            row.ms = in_turn(calls, min(max(int(SECONDS / seconds), ROUNDS[0]), ROUNDS[1]))
        for who in (OURS, STOCK):
            if who in calls:
                arrays = [each.numpy() for each in calls[who].args]
                row.kinds[who] = ms_by_kind(tvm_passes.runtime.profile(calls[who].func, *arrays))
    args.to.write_text(json.dumps(asdict(row)))


@torch.no_grad()
def ready(names, case, row, seconds):
    """{who runs the network: a call that has run}; of the others, the row gets the reasons."""
    calls = {}
    for who in names:
        try:
            start = time.monotonic()
            with at_most(seconds):
                call = RUNNERS[who](case)
                found = named(call())
            row.seconds[who] = time.monotonic() - start
            row.off[who] = off_by(found, case.expected, case.dtype)
            call()  # what is compiled for the first call may be compiled again for the second
            calls[who] = call
        except ImportError as error:
            row.reasons[who] = f"`pip install {error.name}` gets it"
        except Exception as error:  # whatever it stops at, the others are still timed
            row.reasons[who] = f"{type(error).__name__}: {one_line(error)}"
    return calls


def operations_of(case):
    """Those of all convolutions and matrix products that torch computes, attention's too."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # since torch 2.3

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call_of(case.network, case.inputs)()
    return counter.get_total_flops()


def peak_of(dtype):
    """{clock: the operations a second of torch's large matrix product, or convolution if that is faster}

    On some processors of AMD, MKL multiplies matrices of float32 at half of their speed.
    """
    kind = getattr(torch, dtype)
    left, right = (torch.rand(MATRIX, MATRIX, dtype=kind) for _ in range(2))
    image = torch.rand(1, CHANNELS, PIXELS, PIXELS, dtype=kind).to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, dtype=kind)
    layer = layer.to(memory_format=torch.channels_last)
    works = {
        lambda: left @ right: 2 * MATRIX**3,
        lambda: layer(image): 2 * 9 * CHANNELS**2 * PIXELS**2,
    }
    speeds = []
    for work, operations in works.items():
        times = [once(work) for _ in range(10)]
        speeds.append({clock: operations / min(ms[clock] for ms in times) * 1e3 for clock in CLOCKS})
    return {clock: max(speed[clock] for speed in speeds) for clock in CLOCKS}


# --- the report


def publish(rows, target, dtype):
    packages = ("onnxruntime", "openvino", "torchvision", "transformers")
    facts = {
        "CPU": common.cpu_name(),
        "torch": f"{torch.__version__}, oneDNN {onednn.version() or 'none'} of ours",
        "Peers": ", ".join(
            f"{package} {version}" for package in packages if (version := version_of(package))
        ),
        "Target": f"`{target}`",
    }
    said = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    name, title = "models", "Whole networks on a CPU"
    if dtype != "float32":
        name, title = f"{name}_{dtype}", f"{title}, in {dtype}"
    common.publish(name, title, f"{said}\n\n{report(rows, dtype)}", common.cpu_name())


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(rows, dtype):
    """The text of the report."""
    parts = [TEXT.format(dtype=dtype)]
    for threads in dict.fromkeys(row.threads for row in rows):
        same = [row for row in rows if row.threads == threads]
        for clock in CLOCKS:
            parts += [f"## {threads} thread{'s' * (threads > 1)}, {CLOCK_NAMES[clock]}", *times(same, clock)]
    parts += ["## Notes", "\n".join(notes(rows)) or "None."]
    first = [row for row in rows if row.threads == rows[0].threads]
    parts += ["## What is computed, and how long compiling takes", work(first)]
    if any(row.kinds for row in first):
        parts += ["## Milliseconds of ours by kind of kernel", kinds(first)]
    return "\n\n".join(parts)


CLOCK_NAMES = {"processor": "time of the processor", "wall": "by the host's clock"}
TEXT = f"""Milliseconds of a call in {{dtype}} on one image: the median of {ROUNDS[0]} rounds or more, in each
of which ours and each peer run in one process; where a run takes less than {QUICK} ms, the second of two.
The time of the processor is that of all threads; other work on the machine disturbs it less than the host's
clock.
torch: eager, and compiled in the default mode, in the layout in which eager is faster; its bfloat16 is
autocast. ONNX Runtime and OpenVINO run what `torch.onnx.export` writes in opset {OPSET}. Masks are pasted
into images; those of OpenVINO by torchvision, since OpenVINO cannot convert the loop that does it.
Floor: what the convolutions and matrix products would take, summed directly, at the speed of the faster
of torch's product of matrices of {MATRIX}x{MATRIX} and its convolution of 3x3 and {CHANNELS} channels. Ours
takes Winograd's algorithm for 3x3, which needs a quarter of the products."""


def times(rows, clock):
    """The table of a clock, and a line about the mean."""
    tried = {who for row in rows for who in (*row.ms[clock], *row.reasons)}
    peers = [who for who in RUNNERS if who in tried and who != OURS]
    ratios = {row.name: row.ratio(clock) for row in rows}
    cells = [
        [
            row.name,
            *(f"{row.ms[clock][who]:.1f}" if who in row.ms[clock] else "-" for who in (OURS, *peers)),
            f"{ratios[row.name]:.2f}" if ratios[row.name] else "-",
            f"{row.floor(clock):.1f}",
        ]
        for row in rows
    ]
    yield common.markdown_table(["", OURS, *peers, BEST, "floor"], cells)
    known = [ratio for ratio in ratios.values() if ratio]
    if known:
        mean = statistics.geometric_mean(known)
        peak = rows[0].peak[clock] / 1e9
        yield f"The geometric mean of {BEST} is {mean:.2f}. The floor is at {peak:.0f} GFLOP/s."


def notes(rows):
    """A line for each reason why a peer was not timed, and for each that computes something else."""
    named = {}
    for row in rows:
        for who, reason in row.reasons.items():
            named.setdefault(f"{who} is left out: {reason}", []).append(row.name)
        for who, is_same in row.is_same.items():
            if not is_same:
                far = f"{who} is off by {row.off[who]:.2g}, from torch in float32"
                named.setdefault(far, []).append(row.name)
    return [f"- {', '.join(dict.fromkeys(names))}: {note}" for note, names in named.items()]


def work(rows):
    """What a network finds and multiplies, how far off ours is, and the seconds until it has run."""
    who = [each for each in (OURS, COMPILED, STOCK) if any(each in row.seconds for row in rows)]
    header = ["", "detections", "G multiply-adds", "ours off by", *(f"{each}, s" for each in who)]
    cells = [
        [
            row.name,
            str(row.detections or "-"),
            f"{row.operations / 2e9:.1f}",
            f"{row.off[OURS]:.1e}" if OURS in row.off else "-",
            *(f"{row.seconds[each]:.0f}" if each in row.seconds else "-" for each in who),
        ]
        for row in rows
    ]
    return common.markdown_table(header, cells)


def kinds(rows):
    """In milliseconds, by TVM's profiler."""
    found = {
        f"{row.name}{f', {who}' * (who != OURS)}": of for row in rows for who, of in sorted(row.kinds.items())
    }
    names = list(dict.fromkeys(kind for of in found.values() for kind in of))
    cells = [[label, *(f"{of.get(kind, 0):.2f}" for kind in names)] for label, of in found.items()]
    return common.markdown_table(["", *names], cells)
