"""Time maxima of windows, of both axes at once and of one after the other.

`python -m tests.benchmarks.bench_max_pool`. The peer is torch's `max_pool2d` of images in the memory format
channels_last, which is NHWC, as ours are: in float16 on a GPU, in float32 on a CPU, which `--target llvm` (or
any other LLVM target) times instead. All three results are compared before anything is timed.
"""

import argparse
import os

import numpy as np
import torch
from torch.nn import functional

from tests.benchmarks import _common as common
from tvm_passes.analysis.windows import is_worth_two_pools
from tvm_passes.cleanup.separate_max_pools import MaximaOfMaxima
from tvm_passes.engine.rule import RulePass

import tvm
from tvm import relay
from tvm.contrib import graph_executor

CASES = [  # images in NHWC, window, strides
    ((1, 20, 20, 256), 5, 1),  # spatial pyramid pooling of YOLO
    ((1, 20, 20, 256), 9, 1),
    ((1, 20, 20, 256), 13, 1),
    ((1, 20, 20, 512), 5, 1),
    ((1, 128, 128, 80), 3, 1),  # peaks of heatmaps
    ((1, 80, 80, 64), 7, 2),
    ((1, 160, 160, 64), 3, 2),  # behind a first convolution
]
ATTRIBUTES = "pool_size", "strides", "padding"
HEADER = "one pool", "two pools", "one / two", "chosen", "torch", "torch / chosen"


class Apart(RulePass):
    """Takes all pools apart, whether it is worth it or not."""

    rules = (
        type("AllMaxima", (MaximaOfMaxima,), {"where": lambda self, match: _is_window(match.root.attrs)}),
    )


def _is_window(attrs):
    return min(map(int, attrs.pool_size)) > 1


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="time this LLVM target, instead of the GPU")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU (default 1)")
    args = parser.parse_args(arguments)
    if args.target:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
        torch.set_num_threads(args.threads)
        facts = f"- CPU: {common.cpu_name()}, {args.threads} threads\n- Target: `{args.target}`"
        machine = common.cpu_name()
    else:
        common.require_gpu()
        bandwidth = common.copy_bandwidth()
        facts, machine = common.environment(bandwidth), None
    header, rows = ["maxima of windows", *HEADER], []
    if not args.target:
        header.append("floor")
    for case in CASES:
        rows.append(row(args.target, *case) + ([] if args.target else [floor(*case, bandwidth)]))
        print(rows[-1], flush=True)
    text = "\n".join(
        [facts, "", common.markdown_table(header, rows), "", NOTES if args.target else NOTES + FLOOR]
    )
    common.publish("max_pool", "Maxima of windows", text, machine)


NOTES = "chosen: what `SeparateMaxPools` makes of it. Padding is half a window."
FLOOR = " floor: the time to read the images and write the result once at the bandwidth of a copy."


def row(target, shape, window, strides):
    dtype, device = ("float32", "cpu") if target else ("float16", "cuda")
    data = torch.randn(shape, dtype=getattr(torch, dtype), device=device)
    planes, padding = data.permute(0, 3, 1, 2), window // 2
    x = relay.var("x", shape=shape, dtype=dtype)
    attrs = {name: (of_both,) * 2 for name, of_both in zip(ATTRIBUTES, (window, strides, padding))}
    one = tvm.IRModule.from_expr(relay.nn.max_pool2d(x, **attrs, layout="NHWC"))
    is_chosen = is_worth_two_pools(one["main"].body.attrs)

    def by_torch():
        with torch.inference_mode():
            return functional.max_pool2d(planes, window, strides, padding)

    expected, times = by_torch().permute(0, 2, 3, 1).cpu().numpy(), []
    for mod in (one, Apart()(one)):
        module = _compiled(mod["main"], data, target)
        module.run()
        if not np.array_equal(module.get_output(0).numpy(), expected):
            raise SystemExit(f"{shape}, {window}: the results differ: nothing was timed")
        times.append(common.cpu_ms(module.run) if target else common.median_ms(module.run))
    theirs = common.cpu_ms(by_torch) if target else common.median_ms(by_torch)
    name = (
        f"{window}x{window}" + (f" / {strides}" if strides > 1 else "") + f" of {'x'.join(map(str, shape))}"
    )
    ratio, chosen = times[0] / times[1], times[is_chosen]
    return [name, *times, f"{ratio:.2f}", ("one", "two")[is_chosen], theirs, f"{theirs / chosen:.2f}"]


def _compiled(function, data, target):
    if not target:
        return common.compile_for_gpu(function, data, target=common.tensor_core_target())
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(tvm.IRModule.from_expr(function), target)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.set_input(0, tvm.nd.array(data.numpy()))
    return module


def floor(shape, window, strides, bandwidth):
    elements = np.prod(shape) * (1 + 1 / strides**2)
    return float(elements * 2 / bandwidth * 1e3)


if __name__ == "__main__":
    main()
