"""Time super-resolution networks versus torch and stock TVM: `python -m tests.benchmarks.bench_subpixel`.

On the GPU, inputs and outputs are fp16, with batch 1. "layouts by TVM" is our convolution after TVM's own
ConvertLayout alone: it shows the cost of the shuffles and transposes that `subpixel_pipeline` removes.
"shuffles stay" leaves out MoveDepthToSpace, to judge its cost model. Stock TVM, untuned, works on a 16th of
the image. Results are compared with float32 before they are timed.

`--target llvm` (or any other LLVM target) times the CPU instead, in float32. `--network` times only one of
the networks.
"""

import argparse
import faulthandler
import os
import statistics
import time
import traceback

import numpy as np
import torch

import frontends
import tvm_passes
from tests.benchmarks import _common as common
from tests.models.super_resolution import channels_of, super_resolution_model

import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.contrib.debugger import debug_executor

NETWORKS = {  # the name, its options, height and width
    "thread": ("thread", {}, 720, 1280),
    "ESPCN x4": ("espcn", {"scale": 4}, 540, 960),
    "EDSR-baseline x4": ("edsr_x4", {}, 540, 960),
}
CPU_SIZE = 180, 320
CPU_ROUNDS = 5
TENSOR_CORES = {
    "NVIDIA H200": 790e12,
    "NVIDIA H100": 790e12,
    "NVIDIA A100": 280e12,
}  # FLOP/s that one can reach
STOCK_PART = 4  # of height and of width
MOVERS = ("layout_transform", "transpose", "depth_to_space", "space_to_depth", "concatenate")
HANGS_AFTER = 900  # seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cuda", help="cuda, or a target of LLVM to time the CPU")
    parser.add_argument("--network", choices=NETWORKS, help="only this one")
    parser.add_argument(
        "--no-stock", action="store_true", help="without stock TVM, which takes seconds a run"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(HANGS_AFTER, repeat=True)
    names = [args.network] if args.network else list(NETWORKS)
    if args.target == "cuda":
        common.require_gpu()
        compare(names, args)
    else:
        compare_on_cpu(names, args.target)


# --- GPU


def compare(names, args):
    bandwidth = common.copy_bandwidth()
    times, shares, errors = {}, {}, {}
    for name in names:
        print(f"--- {name}", flush=True)
        network = Network(name)
        times[name] = {"floor": attempt("floor", network.floor_ms, bandwidth)}
        for peer, passes in our_pipelines().items():
            module = attempt(peer, network.compiled, passes)
            if module is not None:
                errors[name, peer] = attempt(peer, network.error, module)
                times[name][peer] = attempt(peer, common.median_ms, module.run)
                shares[name, peer] = attempt(peer, network.share_of_movement, passes)
        for peer, run in network.torch_peers(args.no_compile).items():
            times[name][peer] = attempt(peer, measured_in_torch, run)
            torch.cuda.empty_cache()
        if not args.no_stock:
            times[name]["stock TVM"] = attempt("stock TVM", network.stock_ms)
        print({peer: ms and round(ms, 3) for peer, ms in times[name].items()}, flush=True)
    write_report(names, times, shares, errors, bandwidth)


def our_pipelines():
    target = common.tensor_core_target()
    return {
        "ours": tvm_passes.subpixel_pipeline(target, "float16"),
        "shuffles stay": all_but(["MoveDepthToSpace"], tvm_passes.subpixel_pipeline(target, "float16")),
        "layouts by TVM": all_but([], layouts_by_tvm()),
    }


def all_but(disabled, passes):
    """Passes at the level at which TVM skips none of them, except the disabled ones."""

    def transform(mod, _context):
        with tvm.transform.PassContext(opt_level=3, disabled_pass=disabled):
            return passes(mod)

    return tvm.transform.module_pass(transform, opt_level=0)


def layouts_by_tvm():
    """TVM's ConvertLayout, which stops at each shuffle, but with our convolution."""
    return tvm.transform.Sequential(
        [
            tvm_passes.RestoreDepthToSpace(),
            tvm_passes.FoldIntoConvolutions(),
            relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}),
            relay.transform.FoldConstant(),
            tvm_passes.FuseConv2dNHWC(),
        ]
    )


class Network:
    """A network in fp16 on the GPU, and an image for it."""

    def __init__(self, name):
        self.model_name, self.options, self.height, self.width = NETWORKS[name]
        self.image = self.image_of(self.height, self.width).cuda()
        self.libraries = {}

    def model(self):
        return super_resolution_model(self.model_name, **self.options)

    def image_of(self, height, width):
        generator = torch.Generator().manual_seed(0)
        return torch.rand(1, channels_of(self.model_name), height, width, generator=generator).half()

    def imported(self, height, width):
        mod, params = frontends.from_pytorch(self.model().half(), self.image_of(height, width))
        mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
        return mod

    def library(self, passes):
        if passes not in self.libraries:
            mod = passes(self.imported(self.height, self.width))
            with tvm.transform.PassContext(opt_level=3):
                self.libraries[passes] = relay.build(mod, common.tensor_core_target())
        return self.libraries[passes]

    def compiled(self, passes):
        module = graph_executor.GraphModule(self.library(passes)["default"](tvm.cuda(0)))
        module.set_input(0, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(self.image)))
        module.run()
        return module

    def error(self, module):
        """The error versus float32, as a multiple of that of torch's own fp16."""
        (found,) = common.outputs_of(module)
        exact = self.in_float32()
        with torch.no_grad():
            half = self.model().cuda().half()(self.image)
        ours, torchs = ((each.float() - exact).abs().max().item() for each in (found, half))
        if ours > 3 * torchs:
            raise ValueError(f"the result is {ours:.2g} off, torch's own only {torchs:.2g}")
        return ours / torchs

    def in_float32(self):
        with common.float32_convolutions(), torch.no_grad():
            return self.model().cuda()(self.image.float())

    def share_of_movement(self, passes):
        """The share of the time of all kernels that data movement takes, from TVM's profiler."""
        library = self.library(passes)
        module = debug_executor.GraphModuleDebug(
            library["debug_create"]("default", tvm.cuda(0)), [tvm.cuda(0)], library.get_graph_json(), None
        )
        module.set_input(0, tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(self.image)))
        reports = [module.profile() for _ in range(5)][2:]
        shares = []
        for report in reports:
            calls = [(str(call["Name"]), call["Duration (us)"].microseconds) for call in report.calls]
            total = sum(duration for _, duration in calls)
            shares.append(sum(duration for name, duration in calls if moves_data(name)) / total)
        return statistics.median(shares)

    def torch_peers(self, no_compile):
        model = self.model().cuda().half()
        last = self.model().cuda().half().to(memory_format=torch.channels_last)
        x, x_last = self.image, self.image.to(memory_format=torch.channels_last)
        peers = {"torch NCHW": lambda: model(x), "torch channels_last": lambda: last(x_last)}
        if not no_compile:
            compiled = torch.compile(last)
            peers["torch.compile"] = lambda: compiled(x_last)
        return peers

    def stock_ms(self):
        """The time of one run of stock TVM on a small image, scaled up to the whole image."""
        height, width = self.height // STOCK_PART, self.width // STOCK_PART
        with tvm.transform.PassContext(opt_level=3):
            library = relay.build(self.imported(height, width), common.tensor_core_target())
        module = graph_executor.GraphModule(library["default"](tvm.cuda(0)))
        module.set_input(0, self.image_of(height, width).numpy())
        times = []
        for _ in range(3):
            start = time.perf_counter()
            module.run()
            tvm.cuda(0).sync()
            times.append((time.perf_counter() - start) * 1e3)
        return min(times) * STOCK_PART**2

    def floor_ms(self, bandwidth):
        """The sum over the convolutions of the least time that each takes, for arithmetic or for memory."""
        peak = next((value for card, value in TENSOR_CORES.items() if card in common.card()), None)
        least = []

        def count(layer, inputs, output):
            _, channels, rows, columns = layer.weight.shape
            products = 2 * output.numel() * channels * rows * columns
            moved = 2 * (inputs[0].numel() + output.numel())
            least.append(max(moved / bandwidth, products / peak if peak else 0))

        model = self.model().cuda().half()
        for layer in model.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.register_forward_hook(count)
        with torch.no_grad():
            model(self.image)
        return sum(least) * 1e3


def measured_in_torch(run):
    with torch.no_grad():
        return common.median_ms(run)


def attempt(what, run, *args):
    """What `run` returns, or None with the error printed: a peer that fails does not stop the others."""
    try:
        return run(*args)
    except Exception as error:
        traceback.print_exc()
        print(f"{what} failed: {type(error).__name__}: {str(error)[:500]}", flush=True)
        return None


def moves_data(kernel):
    """Whether a kernel's name has data movement but no convolution: `..._layout_transform_nn_relu_1`."""
    return "conv2d" not in kernel and any(name in kernel for name in MOVERS)


# --- the report

PEERS = ("ours", "shuffles stay", "layouts by TVM", "torch.compile", "torch channels_last", "torch NCHW")
PEERS += ("stock TVM", "floor")
TORCH = ("torch.compile", "torch channels_last", "torch NCHW")


def write_report(names, times, shares, errors, bandwidth):
    rows = []
    for name in names:
        ours = times[name].get("ours")
        best = min((times[name][peer] for peer in TORCH if times[name].get(peer)), default=None)
        rows.append([label(name), *(cell(times[name].get(peer)) for peer in PEERS), ratio(best, ours)])
    moved = [
        [
            label(name),
            *(percent(shares.get((name, peer))) for peer in ("layouts by TVM", "shuffles stay", "ours")),
        ]
        for name in names
    ]
    off = [[label(name), cell(errors.get((name, "ours")))] for name in names]
    text = [
        common.environment(bandwidth),
        "",
        common.markdown_table(["network", *PEERS, "best torch / ours"], rows),
        "",
        NOTES,
        "",
        "Share of kernel time in kernels that transpose, shuffle or concatenate (TVM's profiler):",
        "",
        common.markdown_table(["network", "layouts by TVM", "shuffles stay", "ours"], moved),
        "",
        "The largest error versus float32, as a multiple of that of torch's own fp16:",
        "",
        common.markdown_table(["network", "ours"], off),
        "",
        attempt("plot", plot, names, times, shares) or "(No plot.)",
    ]
    common.publish("subpixel", "Super-resolution networks", "\n".join(text))


NOTES = f"""fp16, batch 1, in ms. shuffles stay: without MoveDepthToSpace. layouts by TVM: our convolution
after TVM's ConvertLayout alone. torch.compile: channels_last. stock TVM: untuned, NCHW, one run of an image
of a {STOCK_PART**2}th of the size, times {STOCK_PART**2}. floor: the sum of what each convolution takes at
the speed of tensor cores or of memory (each input and result once), whichever is longer. "-": not timed."""


def plot(names, times, shares):
    try:
        import matplotlib
    except ImportError:
        return "(No plot: matplotlib is not installed.)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.2), width_ratios=(2, 1))
    peers = [peer for peer in PEERS if peer not in ("stock TVM", "shuffles stay")]
    bars(left, names, {peer: [times[name].get(peer) for name in names] for peer in peers}, "{:.2f}")
    left.set(ylabel="ms", yscale="log", title="Time, fp16")
    before_after = {"layouts by TVM": "before", "ours": "after"}
    bars(
        right,
        names,
        {
            title: [100 * (shares.get((name, peer)) or 0) for name in names]
            for peer, title in before_after.items()
        },
        "{:.0f}",
    )
    right.set(ylabel="% of the time", title="Kernels that move data")
    figure.suptitle(f"Super-resolution networks on {common.card()}")
    figure.tight_layout()
    path = common.RESULTS / f"subpixel-{common.slug(common.card())}.png"
    common.RESULTS.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"![Time and share of data movement]({path.name})"


def bars(axis, groups, series, form):
    width = 0.8 / len(series)
    for place, (name, heights) in enumerate(series.items()):
        found = [
            (group + (place - (len(series) - 1) / 2) * width, height)
            for group, height in enumerate(heights)
            if height is not None
        ]
        drawn = axis.bar(*zip(*found), width, label=name) if found else ()
        axis.bar_label(drawn, fmt=form.format, fontsize=7) if found else None
    axis.set_xticks(range(len(groups)), groups)
    axis.legend(fontsize=8)


def label(name):
    _, _, height, width = NETWORKS[name]
    return f"{name}, {height}x{width}"


def cell(value):
    return "-" if value is None else value


def ratio(theirs, ours):
    return f"{theirs / ours:.2f}" if theirs and ours else "-"


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


# --- CPU


def compare_on_cpu(names, target):
    threads = min(2, os.cpu_count())
    torch.set_num_threads(threads)
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    measured = {name: measure_on_cpu(name, target) for name in names}
    rows = [
        [name, *(cell(ms) for ms in times.values()), ratio(times["stock TVM"], times["ours"])]
        for name, times in measured.items()
    ]
    header = ["network", *next(iter(measured.values())), "stock TVM / ours"]
    height, width = CPU_SIZE
    facts = [f"- CPU: {common.cpu_name()}, {threads} threads", f"- Target: `{target}`"]
    facts += [f"- torch: {torch.__version__}", f"- Images: {height}x{width}, float32, batch 1"]
    text = "\n".join([*facts, "", common.markdown_table(header, rows), "", CPU_NOTES])
    common.publish("subpixel", "Super-resolution networks on a CPU", text, common.cpu_name())


CPU_NOTES = f"""Medians of {CPU_ROUNDS} rounds in which each runs once, in ms. ours:
`subpixel_pipeline("llvm")`, which leaves NCHW to TVM. The last two columns show why: they are the network in
NHWC with TVM's convolution, and with `topi_ext.conv2d_nhwc`."""


def measure_on_cpu(name, target):
    """{peer: the median time in ms, or None}"""
    model_name, options, *_ = NETWORKS[name]
    model = super_resolution_model(model_name, **options)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, channels_of(model_name), *CPU_SIZE, generator=generator)
    with torch.no_grad():
        expected = model(x).numpy()
        runs = {"torch": torch.no_grad()(lambda: model(x))}
    for peer, passes in cpu_pipelines(target).items():
        runs[peer] = attempt(peer, compiled_for_cpu, model, x, passes, target, expected)
    times = {peer: [] for peer in runs}
    for _ in range(CPU_ROUNDS):  # in turn, for other work on the machine to slow all alike
        for peer, run in runs.items():
            if run is not None:
                start = time.perf_counter()
                run()
                times[peer].append((time.perf_counter() - start) * 1e3)
    medians = {peer: statistics.median(found) if found else None for peer, found in times.items()}
    print(name, medians, flush=True)
    return medians


def cpu_pipelines(target):
    nhwc = tvm_passes.subpixel_pipeline(None, "float32")
    return {
        "stock TVM": tvm.transform.Sequential([]),
        "ours": tvm_passes.subpixel_pipeline(target),
        "NHWC": nhwc,
        "conv2d_nhwc": tvm.transform.Sequential([nhwc, tvm_passes.FuseConv2dNHWC(also_float32=True)]),
    }


def compiled_for_cpu(model, x, passes, target, expected):
    mod, params = frontends.from_pytorch(model, x)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    mod = passes(mod)
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.set_input(0, x.numpy())
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, rtol=1e-3, atol=1e-3)
    return module.run


if __name__ == "__main__":
    main()
