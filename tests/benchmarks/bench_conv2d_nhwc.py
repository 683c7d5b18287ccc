"""Time the NHWC convolution versus cuDNN: `python -m tests.benchmarks.bench_conv2d_nhwc`.

Both kernels of the operator are timed: ours, and the one that cuDNN's graph API fuses. Each does everything
in one kernel, and is compared with torch's float32 result before it is timed. The peer is torch's `conv2d` of
channels-last tensors, with the algorithm chosen by trial: alone, and with its epilogue in eager mode.

`--depthwise` times those of each channel by itself, `--grouped` those of ResNeXt-50, `--bottleneck` those of
ResNet-50, and `--int8` those in int8 versus float16; these have reports of their own. `--stem` times the
first ones of networks, as they are and over pairs of pixels, as `PixelsInPairs` makes them; with `--tune` by
the fastest of cuDNN's plans. `--quick` times only a few convolutions, `--only TEXT` those whose name contains
the text. `--batch` takes so many images each. `--sweep` times other plans for each, to choose those in
`topi_ext/conv2d_nhwc/choose_plan.py`.
"""

import argparse
import faulthandler
import time
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from unittest import mock

import numpy as np
import torch
from torch.nn import functional

import topi_ext
from tests.benchmarks import _common as common
from tests.ops import conv2d_in_torch
from tests.ops.convolutions import (
    BIG,
    BIG_BOTTLENECKS,
    BIG_DEPTHWISE,
    BIG_GROUPED,
    BIG_STEMS,
    Case,
    QuantizedCase,
    options,
)
from topi_ext.conv2d_nhwc import choose_kernel, cuda, cudnn, op
from topi_ext.conv2d_nhwc.choose_plan import plan_for
from topi_ext.conv2d_nhwc.plan import Plan, known_arch
from topi_ext.cudnn.plans import timed_by
from topi_ext.cudnn.session import LIBRARY
from tvm_passes import PixelsInPairs
from tvm_passes.convolution import pixels_in_pairs

import tvm
from tvm import relay

QUICK = 3  # of the convolutions
HOST_CALLS = 200  # as many as the device queues
LIMIT_S = 540  # for all of it; then say where it hangs
OURS, CUDNN = "ours", "cuDNN"
WITH_CUDNN = f"cuda -libs={LIBRARY}"
TOLERANCE = {torch.float16: 2**-11 * 1.01, torch.bfloat16: 2**-8}
# What large copies and large matrix products reach, in TB/s and TFLOP/s of 16-bit numbers.
CARDS = {"H200": (4.3, 790), "H100": (2.9, 790), "A100": (1.7, 270)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few convolutions only")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--depthwise", action="store_const", dest="kind", const="depthwise")
    kinds.add_argument("--grouped", action="store_const", dest="kind", const="grouped")
    kinds.add_argument("--bottleneck", action="store_const", dest="kind", const="bottleneck")
    kinds.add_argument("--stem", action="store_const", dest="kind", const="stem")
    parser.add_argument("--tune", action="store_true", help="of --stem, by cuDNN's fastest plan")
    parser.add_argument("--int8", action="store_true", help="in int8, versus float16")
    parser.add_argument("--only", default="", help="those whose name has this text")
    parser.add_argument("--batch", type=int, help="images of each; by default as many as it has")
    parser.add_argument("--sweep", action="store_true", help="time other plans")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    common.require_gpu()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    kinds = {
        "depthwise": BIG_DEPTHWISE,
        "grouped": BIG_GROUPED,
        "bottleneck": BIG_BOTTLENECKS,
        "stem": BIG_STEMS,
    }
    every = kinds.get(args.kind, BIG)
    cases = [case for case in (every[:QUICK] if args.quick else every) if args.only in str(case)]
    if args.batch:
        cases = [replace(case, batch=args.batch) for case in cases]
    if args.int8:
        cases = [case for case in cases if case.dtype == "float16"]
    if args.sweep:
        sweep(map(in_int8 if args.int8 else replace_bias, cases))
    elif args.int8:
        compare_int8(cases, args.kind)
    elif args.kind == "stem":
        compare_stems(cases, args.tune)
    else:
        compare(cases, args.kind)


def compare(cases, kind):
    bandwidth = common.copy_bandwidth()
    byte_rate, flop_rate, source = rates(bandwidth)
    notes = [NOTES + source, "", host_cost()]
    rows = []
    for case in cases:
        try:
            rows.append(compare_one(replace_bias(case), byte_rate, flop_rate))
        except Exception as error:  # the others are still worth timing
            rows.append([str(case), f"{type(error).__name__}: {last_line(error)}", *[""] * 8])
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    header = ["convolution", "ours", "cuDNN, fused", "chosen", "TFLOP/s of the chosen"]
    header += ["torch, alone", "torch, eager epilogue", "torch alone / chosen"]
    header += ["floor by bytes", "floor by arithmetic"]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", *notes]
    name, title = named("conv2d_nhwc", kind)
    common.publish(name, f"{title} in NHWC", "\n".join(text))


def named(name, kind):
    """The name and the title of a report of all convolutions, or of those of a kind."""
    return (f"{name}_{kind}", f"{kind.capitalize()} convolution") if kind else (name, "Convolution")


NOTES = f"""The first column gives height x width, channels to filters, kernel, type and options. ours: this
project's kernel. cuDNN, fused: the kernel from its graph API; - where it has none. chosen: which of the two a
target with -libs={LIBRARY} gets, in bold. torch, alone: with the bias only. floor: the minimum time to
read the inputs and write the result once, and to multiply, """


def rates(bandwidth):
    """Bytes and operations per second, and where these rates are known from."""
    for name, (terabytes, teraflops) in CARDS.items():
        if name in common.card():
            return (
                terabytes * 1e12,
                teraflops * 1e12,
                f"at {terabytes} TB/s and {teraflops} TFLOP/s, as known for {name}.",
            )
    return bandwidth, float("inf"), "at the measured bandwidth; the card's arithmetic speed is not known."


def compare_one(case, byte_rate, flop_rate):
    tensors = case.tensors(torch)
    ours = checked(case, tensors)
    (result,) = common.outputs_of(ours)
    size = sum(tensor.nbytes for tensor in [*tensors.values(), result])
    flops = 2 * result.numel() * tensors["weight"][0].numel()
    alone = {name: tensors[name] for name in ("data", "weight", "bias")}
    without = {
        name: case.options[name]
        for name in ("strides", "padding", "dilation", "groups")
        if name in case.options
    }
    times = {OURS: common.median_ms(ours.run), CUDNN: time_of_cudnn(case, tensors)}
    ms = times[chosen(case)]
    torch_times = [
        common.median_ms(lambda: conv2d_in_torch.conv2d_nhwc(**alone, **without)),
        common.median_ms(lambda: conv2d_in_torch.conv2d_nhwc(**tensors, **case.options)),
    ]
    floors = [size / byte_rate * 1e3, flops / flop_rate * 1e3]
    return [
        str(case),
        *(marked(each, kernel == chosen(case)) for kernel, each in times.items()),
        chosen(case),
        f"{flops / ms / 1e9:.0f}",
        *torch_times,
        f"{torch_times[0] / ms:.2f}",
        *floors,
    ]


def time_of_cudnn(case, tensors):
    """The time of cuDNN's kernel; infinite where it has none."""
    if find_spec("cudnn") is None or not cudnn.is_capable(case.problem()):
        return float("inf")
    with mock.patch.object(choose_kernel, "is_cudnn_better", return_value=True):
        try:
            return common.median_ms(checked(case, tensors, WITH_CUDNN).run)
        except tvm.TVMError as error:
            if case.problem().groups == 1:
                raise
            print(f"cuDNN, {case}: {last_line(error)}", flush=True)  # it may have no plan for groups
            return float("inf")


def host_cost():
    """What a call costs the host, rather than the device: cuDNN's goes through Python."""
    case = replace_bias(Case((25, 42), 256, 256, residual=True, **options(activation="relu")))
    tensors = case.tensors(torch)
    costs = [f"ours {host_us(checked(case, tensors).run):.0f}"]
    if find_spec("cudnn"):
        costs.append(f"cuDNN {host_us(checked(case, tensors, WITH_CUDNN).run):.0f}")
    return f"Host time per call of {case}, in µs: {', '.join(costs)}."


def host_us(run):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        run()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / HOST_CALLS * 1e6


def chosen(case):
    """The kernel that the operator chooses for this GPU."""
    is_cudnn = op.kernels_for(case.problem(), tvm.target.Target(WITH_CUDNN)) is cudnn
    return CUDNN if is_cudnn else OURS


def marked(ms, is_chosen):
    text = "-" if ms == float("inf") else f"{ms:.3f}"
    return f"**{text}**" if is_chosen else text


def replace_bias(case):
    """The case with a bias of the type of the data, which torch requires."""
    return replace(case, bias=case.dtype)


def checked(case, tensors, target="cuda"):
    """Our operator, compiled, after its result is checked."""
    function = relay.Function(*case.call(case.shapes()))
    module = common.compile_for_gpu(function, *tensors.values(), target=target)
    check(case, tensors, module)
    return module


def check(case, tensors, module):
    """Raise an error unless a module computes what torch does in float32."""
    module.run()
    (result,) = common.outputs_of(module)
    exact = conv2d_in_torch.conv2d_nhwc(
        **{name: tensor.float() for name, tensor in tensors.items()}, **case.options
    )
    error = (result.float() - exact).abs_().sub_(exact.abs_(), alpha=TOLERANCE[result.dtype]).max().item()
    if not error < 1e-3:
        raise ValueError(f"wrong by {error} beyond rounding, so not timed")


def last_line(error):
    return (str(error).splitlines() or [""])[-1]


# --- int8


def compare_int8(cases, kind):
    bandwidth, rows = common.copy_bandwidth(), []
    for case in cases:
        quantized = in_int8(case)
        half, times = time_in_float16(case), times_in_int8(quantized)
        found = [ms for ms in times.values() if isinstance(ms, float)]
        best = f"{half / min(found):.2f}" if found else ""
        rows.append([str(quantized), f"{half:.3f}", *map(shown, times.values()), best])
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    header = ["convolution", "float16", "ours, int8", "cuDNN, int8", "float16 / the best in int8"]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES_ON_INT8]
    name, title = named("conv2d_int8", kind)
    common.publish(name, f"{title} in int8", "\n".join(text))


NOTES_ON_INT8 = """Milliseconds. float16: by the kernel that a target with cuDNN gets. Data, weights, residual
and result are int8; tests check the results. Where cuDNN has no plan, it says why."""


def in_int8(case):
    shape = case.size, case.channels, case.filters, case.kernel, case.batch
    return QuantizedCase(*shape, residual=case.residual, options=case.options)


def time_in_float16(case):
    case = replace_bias(case)
    return common.median_ms(checked(case, case.tensors(torch), WITH_CUDNN).run)


def times_in_int8(case):
    """The time of each kernel, or why it has none."""
    times = {}
    for kernel, target in ((OURS, "cuda"), (CUDNN, WITH_CUDNN)):
        if kernel == CUDNN and not cudnn.is_capable(case.problem()):
            times[kernel] = "-"
            continue
        try:
            with mock.patch.object(choose_kernel, "is_cudnn_better", return_value=kernel == CUDNN):
                times[kernel] = common.median_ms(compiled_in_int8(case, target).run)
        except Exception as error:  # the others are still worth timing
            times[kernel] = last_line(error)
    return times


def compiled_in_int8(case, target):
    function = relay.Function(*case.call(case.shapes()))
    return common.compile_for_gpu(function, *int8_tensors(case).values(), target=target)


def int8_tensors(case):
    torch.manual_seed(0)
    types, tensors = case.types(), {}
    for name, shape in case.shapes().items():
        if types[name] == "int8":
            tensors[name] = torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
        else:
            tensors[name] = torch.rand(shape, dtype=getattr(torch, types[name]), device="cuda") / 1e4
    return tensors


def shown(ms):
    return f"{ms:.3f}" if isinstance(ms, float) else ms


# --- the first convolutions of networks


def compare_stems(cases, is_tuned):
    bandwidth = common.copy_bandwidth()
    byte_rate, flop_rate, source = rates(bandwidth)
    rows = []
    for case in map(replace_bias, cases):
        rows.append(compare_stem(case, is_tuned, byte_rate, flop_rate))
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
    header = ["convolution", "as it is", "in pairs, ours", "in pairs, cuDNN", "as it is / best in pairs"]
    header += ["TFLOP/s of the best", "torch, alone", "floor by bytes", "floor by arithmetic"]
    notes = NOTES_ON_STEMS + ("the fastest of its plans." if is_tuned else "the plan that it names first.")
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), ""]
    text += [notes, f"The floors are {source}", "", cost_of_a_channel()]
    name, title = named("conv2d_nhwc", "stem")
    common.publish(name, f"{title} in NHWC", "\n".join(text))


NOTES_ON_STEMS = """Milliseconds, with constant weights. as it is: of three channels, by our own kernel,
as cuDNN has none for them. in pairs: over pairs of pixels of four channels, which are there before; - where
cuDNN has no kernel. Arithmetic, also that of the floor, is of three channels. cuDNN: by """


def compare_stem(case, is_tuned, byte_rate, flop_rate):
    tensors = case.tensors(torch)
    image = functional.pad(tensors["data"], (0, pixels_in_pairs.CHANNELS - case.channels))
    as_it_is, in_pairs = stem_functions(case, {name: each.cpu().numpy() for name, each in tensors.items()})
    modules = [common.compile_for_gpu(as_it_is, tensors["data"]), common.compile_for_gpu(in_pairs, image)]
    if find_spec("cudnn") and cudnn.is_capable(pixels_in_pairs.in_pairs(case.problem())):
        with mock.patch.object(choose_kernel, "is_cudnn_better", return_value=True):
            modules.append(common.compile_for_gpu(in_pairs, image, target=WITH_CUDNN))
    with timed_by(common.median_ms) if is_tuned else nullcontext():
        first, *others = times = [time_of_stem(case, tensors, module) for module in modules]
    result = common.outputs_of(modules[0])[0]
    without = {name: case.options[name] for name in ("strides", "padding")}
    alone = common.median_ms(lambda: conv2d_in_torch.conv2d_nhwc(**tensors, **without))
    flops = 2 * result.numel() * tensors["weight"][0].numel()
    size = sum(tensor.nbytes for tensor in [*tensors.values(), result])
    return [
        str(case),
        *("-" if ms == float("inf") else f"{ms:.4f}" for ms in times),
        *["-"] * (3 - len(times)),
        f"{first / min(others):.2f}",
        f"{flops / min(times) / 1e9:.0f}",
        alone,
        *(f"{part * 1e3:.4f}" for part in (size / byte_rate, flops / flop_rate)),
    ]


def time_of_stem(case, tensors, module):
    """Infinite where cuDNN has no plan for it."""
    try:
        check(case, tensors, module)
    except tvm.TVMError as error:
        print(f"{case}: {last_line(error)}", flush=True)
        return float("inf")
    return common.median_ms(module.run)


def stem_functions(case, arrays):
    """A convolution with these constant weights: as it is, and in pairs of pixels of four channels."""
    constants = {name: array for name, array in arrays.items() if name != "data"}
    more = pixels_in_pairs.CHANNELS - case.channels
    wider = {**constants, "weight": np.pad(constants["weight"], [(0, 0)] * 3 + [(0, more)])}
    as_it_is, four_channels = (
        of_an_image(case.shape[:3], given, case.options) for given in (constants, wider)
    )
    with mock.patch.object(pixels_in_pairs, "is_better", return_value=True):
        return as_it_is, PixelsInPairs()(tvm.IRModule.from_expr(four_channels))["main"]


def of_an_image(size, constants, options):
    weight = constants["weight"]
    image = relay.var("data", shape=(*size, weight.shape[3]), dtype=str(weight.dtype))
    given = {name: relay.const(array) for name, array in constants.items()}
    return relay.Function([image], topi_ext.conv2d_nhwc(image, **given, **options))


def cost_of_a_channel():
    """What it costs that `topi_ext.preprocess` writes four channels."""
    image = torch.randint(0, 256, (1, 1080, 1920, 3), dtype=torch.uint8, device="cuda")
    variable, times = relay.var("image", shape=tuple(image.shape), dtype="uint8"), []
    of_result = {
        "mean": [123.7, 116.3, 103.5],
        "std": [58.4, 57.1, 57.4],
        "layout": "NHWC",
        "dtype": "float16",
    }
    for channels in (3, pixels_in_pairs.CHANNELS):
        call = topi_ext.preprocess(variable, (750, 1333), (800, 1344), padded_channels=channels, **of_result)
        module = common.compile_for_gpu(relay.Function([variable], call), image)
        times.append(common.median_ms(module.run))
    return "The image of 3 channels is written in {:.4f} ms, that of 4 in {:.4f}.".format(*times)


# --- other plans


def sweep(cases):
    arch = int(tvm.cuda(0).compute_version.replace(".", ""))
    for case in cases:
        in_use = plan_for(case.problem(), known_arch(arch))
        print(f"{case}, in use: {describe(in_use)}", flush=True)
        times = []
        for plan in [in_use, *other_plans(in_use)]:
            with mock.patch.object(cuda, "plan_for", return_value=plan):
                try:
                    times.append((time_of_ours(case), describe(plan)))
                except Exception as error:
                    times.append((float("inf"), f"{describe(plan)}: {last_line(error)}"))
            print(f"  {times[-1][0]:.3f}  {times[-1][1]}", flush=True)
        print("  the best: {:.3f}  {}".format(*min(times)), flush=True)


def time_of_ours(case):
    if isinstance(case, QuantizedCase):
        return common.median_ms(compiled_in_int8(case, "cuda").run)
    return common.median_ms(checked(case, case.tensors(torch)).run)


def other_plans(plan: Plan):
    """The plans that fit in shared memory and, approximately, in registers."""
    plans = []
    if plan.resident:
        tiles, teams = ((8, 8), (8, 16), (16, 16), (16, 32)), (1, 2, 3, 4, 5, 6, 8)
        plans += [
            replace(plan, tile=tile, teams=n, joined=joined, columns=columns)
            for tile, n, (joined, columns) in product(tiles, teams, bundles(plan))
        ]
    else:
        resident = replace(plan, resident=True, by_taps=False, planes=0, ahead=1, tile=(8, 8), warps=(4, 1))
        plans += [
            replace(resident, columns=columns, teams=n, tile=tile)
            for columns, n, tile in product((32, 64), (1, 2, 3), ((8, 8), (8, 16)))
        ]
        plans += [
            replace(plan, planes=planes, ahead=ahead, columns=columns, tile=tile, by_taps=by_taps)
            for planes, ahead, columns, tile, by_taps in product(
                (4, 8), (1, 2, 3), (128, 256), ((8, 16), (16, 16)), (False, True)
            )
            if columns <= max(plan.columns, 128) and (by_taps or ahead < plan.taps)
        ]
    return [each for each in plans if each.fits and each != plan and is_possible(each)]


def bundles(plan):
    """How many groups may be joined, and the columns that their filters take."""
    groups, of_group = plan.problem.groups, plan.problem.filters_of_group
    largest = max(of_group, plan.problem.channels_of_group)
    counts = [n for n in range(2, 64 // largest + 1) if groups % n == 0]
    narrower = [columns for columns in (32, 64, 128) if groups == 1 and columns < plan.columns]
    return [
        (plan.joined, plan.columns),
        *((plan.joined, columns) for columns in narrower),
        *((n, -(-n * of_group // 8) * 8) for n in counts if n != plan.joined),
    ]


def is_possible(plan):
    """Whether the kernel can be written, with its sums in registers."""
    if plan.warp_columns % 8:
        return False
    sums = plan.warp_rows * plan.warp_columns // 2
    each = min(255, 65536 // plan.threads)
    return plan.threads <= 1024 and 16 <= sums <= 128 and sums + 40 <= each


def describe(plan):
    names = (
        ("tile", "columns", "warps", "teams", "joined")
        if plan.resident
        else ("tile", "columns", "planes", "ahead", "by_taps")
    )
    return ", ".join(f"{name} {getattr(plan, name)}" for name in names)


if __name__ == "__main__":
    main()
