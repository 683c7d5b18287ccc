"""Networks and operators of Relax on a GPU, beside Relay's, which this process has, and torch's."""

import json
import statistics
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import torch
import torchvision
from torchvision.ops import box_iou

from tests.benchmarks import _common as common
from tests.benchmarks._models import ON_GPU
from tests.benchmarks._models_on_gpu import prepared
from tests.benchmarks._relax_cases import CASES, NETWORK, tensors_of

from tvm import relay

ROUNDS, REPEATS = 3, 50
OVERLAP = 0.9  # of a box that is found again

TEXT = f"""What Relax runs was compiled elsewhere, on a machine without a GPU.

Operators: milliseconds on the device, the median of {common.REPEATS} calls, and of {{rounds}} such medians,
between which the processes of the two TVMs take turns. TVM: Relax's own operator, scheduled by its default
pipeline. Each result was compared with torchvision's or torch's before.

"""


class Relax:
    """The process with TVM 0.27."""

    def __init__(self, python, folder):
        command = [*python, "-m", "tests.benchmarks.bench_relax", "--serve", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith(("{", "[", "null")) or line[:1].isdigit():
                return json.loads(line)
        raise RuntimeError(f"the process with Relax ended at {command}")


def run(args):
    common.require_gpu()
    relax = Relax(args.relax_python, args.folder)
    relax("check")
    refused = json.loads((args.folder / "refused.json").read_text())
    target = common.tensor_core_target("cudnn-frontend")
    rows = [operator_row(name, relax, refused, target) for name in CASES]
    network, found = network_row(relax)
    facts = relax("facts")
    alone = ", its runtime alone" if facts["runtime alone"] else ""
    lines = [
        common.environment(common.copy_bandwidth(), times=None),
        f"- torchvision: {torchvision.__version__}",
        f"- Relax: TVM {facts['version']}{alone}",
        f"- Target: {target}",
        "",
        TEXT.format(rounds=ROUNDS),
        common.markdown_table(["", "Relax", "Relay", "Relax / Relay", "TVM", "torch"], rows),
        "",
        *(f"TVM does not compile its own for {name}: {why}." for name, why in refused.items()),
        "",
        network,
        "",
        found,
    ]
    common.publish("relax", "Relax on a GPU", "\n".join(lines))


def operator_row(name, relax, refused, target):
    given = tensors_of(name)
    module = relay_module(CASES[name].ours, given, target)
    calls = {"Relax": partial(relax, "ours", name), "Relay": lambda: common.median_ms(module.run)}
    times = in_turn(calls)
    with torch.no_grad():
        torch_ms = common.median_ms(lambda: CASES[name].peer(*given))
    has_stock = CASES[name].stock is not None and name not in refused
    stock = f"{relax('stock', name):.3f}" if has_stock else "-"
    row = [name, times["Relax"], times["Relay"], f"{times['Relax'] / times['Relay']:.2f}", stock, torch_ms]
    print(row, flush=True)
    return row


def relay_module(build, given, target):
    types = [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in given]
    variables = [relay.var(f"x{at}", shape=shape, dtype=dtype) for at, (shape, dtype) in enumerate(types)]
    return common.compile_for_gpu(relay.Function(variables, build(*variables)), *given, target=target)


def in_turn(calls):
    """{name: the median of its times}"""
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(call())
    return {name: statistics.median(each) for name, each in times.items()}


def network_row(relax):
    """The times of the network as text, and what is found."""
    network, inputs = ON_GPU[NETWORK].build()
    ours = prepared(NETWORK, network, inputs)
    image, model = inputs[0].cuda(), network.cuda().eval()
    with torch.no_grad():
        calls = {
            "Relax": lambda: relax("network", REPEATS),
            "Relay": lambda: common.median_wall_ms(lambda: ours(image), REPEATS),
        }
        times = in_turn(calls)
        times["torchvision"] = common.median_wall_ms(lambda: model([image]), REPEATS)
        wanted = model([image])[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")
        relax("found", str(path))
        by_relax = torch.load(path)
    by_relay = {name: each.cpu() for name, each in ours(image).items() if name != "masks"}
    wanted = {name: each.cpu() for name, each in wanted.items() if name != "masks"}
    rows = [["ms", *times.values(), f"{times['Relax'] / times['Relay']:.2f}"]]
    found = [
        f"{name} finds {found_again(wanted, found)} of torchvision's {len(wanted['boxes'])} detections, and "
        f"{found_again(found, wanted)} of its own {len(found['boxes'])} are torchvision's"
        for name, found in (("Relax", by_relax), ("Relay", by_relay))
    ]
    text = f"{'. '.join(found)}: of the same class, with an IoU above {OVERLAP}. torchvision's is float32."
    return common.markdown_table([NETWORK, *times, "Relax / Relay"], rows), text


def found_again(some, others):
    """How many boxes of some are there among the others, of the same class."""
    overlaps = box_iou(some["boxes"].float(), others["boxes"].float())
    overlaps[some["labels"][:, None] != others["labels"][None]] = 0
    return int((overlaps > OVERLAP).any(1).sum()) if len(others["boxes"]) else 0
