"""Time batched NMS versus torchvision's two variants and stock TVM: `python -m tests.benchmarks.bench_nms`.

torchvision's `batched_nms` shifts the boxes of each class apart ("shifted"), or calls NMS class by class
("loop"). Stock TVM is `vision.non_max_suppression` with class ids; its sort hangs and is replaced by ours.
Only ours and the loop are exact, so ours is compared with the loop, on the CPU, before it is timed.

`--target llvm` (or any other LLVM target) times the CPU instead, versus torchvision on two threads.
`--sweep` times several tile shapes, to choose those in `topi_ext/batched_nms/cuda_suppress.py`, and ways to
sort, to choose the limits in `cuda_rank.py`.
"""

import argparse
import os
import statistics

import numpy as np
import torch
import torchvision
from torchvision.ops import boxes as torchvision_boxes

from tests.benchmarks import _common as common
from tests.ops import class_by_class
from tests.ops.detections import clustered_detections
from topi_ext.batched_nms import batched_nms, cuda, cuda_rank
from topi_ext.batched_nms.cuda_suppress import LARGE_TILES, SMALL_TILES, SuppressShape, shape_for

import tvm
from tvm import relay
from tvm.contrib import graph_executor

CASES = [(100, 1), (100, 80), (1000, 80), (4507, 5), (20_000, 80), (20_000, 1), (90_000, 90), (90_000, 1)]
CASES += [(200_000, 1), (200_000, 1203)]
CPU_CASES = [(1000, 80), (4507, 5), (20_000, 80), (1000, 1), (20_000, 1)]
CURVE_CLASSES = (1, 80, 1203)
CURVE_SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 90_000, 200_000)
FEW = (100, 300, 1000, 2000, 3000, 4000, 5000, 6000)
SHAPES = [SuppressShape(*shape) for shape in ((64, 2), (128, 2), (128, 4))]
SHAPES += [SuppressShape(*shape) for shape in ((256, 1), (256, 2), (256, 4), (512, 1), (512, 2))]
THRESHOLD = 0.5
STOCK_LIMIT = 20_000  # boxes; beyond, stock TVM takes a second or more
SLOW_MS, TOO_SLOW_MS = 20, 1500


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cuda", help="cuda, or a target of LLVM to time the CPU")
    parser.add_argument("--sweep", action="store_true", help="time several shapes of tile and ways to sort")
    parser.add_argument("--no-curve", action="store_true", help="only the table, no plot")
    args = parser.parse_args()
    if args.target != "cuda":
        compare_on_cpu(args.target)
        return
    common.require_gpu()
    sweep() if args.sweep else compare(with_curve=not args.no_curve)


# --- GPU


def compare(with_curve):
    bandwidth = common.copy_bandwidth()
    rows = []
    for n, classes in CASES:
        arrays = clustered_detections(n, classes)
        inputs = on_gpu(arrays)
        ours = checked(inputs, arrays)
        times = [measure(ours.run), measure(shifted(inputs)), measure(loop(inputs)), stock_ms(inputs)]
        floor = (44 * n + 4) / bandwidth * 1e3  # ids and indices take 8 bytes, the boxes and scores 20
        wall = [wall_ms(ours.run), min_of(wall_ms(shifted(inputs)), wall_ms(loop(inputs)))]
        rows.append([f"{n:,} / {classes}", *times, ratio(times), floor, *wall])
        print(rows[-1], flush=True)
    header = ["boxes / classes", "ours", "shifted", "loop", "stock TVM", "best torchvision / ours", "floor"]
    header += ["ours, with the host", "torchvision, with the host"]
    text = [common.environment(bandwidth), f"- torchvision: {torchvision.__version__}", ""]
    text += [common.markdown_table(header, [list(map(cell, row)) for row in rows]), "", NOTES]
    if with_curve:
        text += ["", curve()]
    common.publish("nms", "Batched NMS", "\n".join(text))


NOTES = f"""IoU threshold {THRESHOLD}, float32 boxes and scores, int64 class ids; clustered detections, see
`tests/ops/detections.py`. shifted, loop: the two variants of torchvision's `batched_nms`. floor: the time to
read the inputs once and to write the indices once at the bandwidth of a copy. with the host: from the call
to the end of the work, by the host's clock; for torchvision, the faster of its two variants.
"-": takes more than {TOO_SLOW_MS / 1000} s, or, for stock TVM, has more than {STOCK_LIMIT:,} boxes."""


def curve():
    """Time by number of boxes, as a table and, with matplotlib, as a plot."""
    curves, rows = {}, []
    for classes in CURVE_CLASSES:
        for n in CURVE_SIZES:
            inputs = on_gpu(clustered_detections(n, classes))
            times = [measure(compiled(inputs).run), measure(shifted(inputs)), measure(loop(inputs))]
            rows.append([f"{n:,} / {classes}", *times, ratio(times)])
            for name, value in zip(("ours", "shifted", "loop"), times):
                curves.setdefault((classes, name), []).append((n, value))
    image = plot(curves)
    table = common.markdown_table(
        ["boxes / classes", "ours", "shifted", "loop", "best torchvision / ours"],
        [list(map(cell, row)) for row in rows],
    )
    return f"{image}\n\n{table}"


def plot(curves):
    try:
        import matplotlib
    except ImportError:
        return "(No plot: matplotlib is not installed.)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(CURVE_CLASSES), figsize=(13, 4.2), sharey=True)
    for axis, classes in zip(axes, CURVE_CLASSES):
        for name, style in (("ours", "o-"), ("shifted", "s--"), ("loop", "^:")):
            points = [(n, value) for n, value in curves[classes, name] if value is not None]
            axis.loglog(*zip(*points), style, label=name)
        axis.set(title=f"{classes} class{'es' * (classes > 1)}", xlabel="boxes")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="ms")
    axes[0].legend(["ours", "torchvision, shifted", "torchvision, class by class"])
    figure.suptitle(f"Batched NMS on {common.card()}")
    figure.tight_layout()
    path = common.RESULTS / f"nms-{common.slug(common.card())}.png"
    common.RESULTS.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    return f"![Time by number of boxes]({path.name})"


def sweep():
    rows = []
    for shape in SHAPES:
        cuda.shape_for = lambda _, shape=shape: shape
        times = []
        for n, classes in CASES:
            arrays = clustered_detections(n, classes)
            times.append(measure(compiled(on_gpu(arrays)).run))
        chosen = " (in use)" if shape in (SMALL_TILES, LARGE_TILES) else ""
        rows.append([f"{shape.boxes} x {shape.slices}{chosen}", *times])
        print(rows[-1], flush=True)
    print(common.markdown_table(["tile", *(f"{n:,} / {classes}" for n, classes in CASES)], rows))
    cuda.shape_for = shape_for
    sweep_of_sorts()


def sweep_of_sorts():
    """Counting, with several sizes of block, versus the sort, by the number of boxes of 80 classes."""
    arrays = [on_gpu(clustered_detections(n, 80)) for n in FEW]
    rows, cuda_rank.MAX_KEYS = [], max(FEW)
    for limit, threads in ((0, cuda_rank.THREADS), (max(FEW), 256), (max(FEW), 512), (max(FEW), 1024)):
        cuda_rank.MAX_KEYS_OF_ALL, cuda_rank.THREADS = limit, threads
        times = [measure(compiled(inputs).run) for inputs in arrays]
        rows.append([f"counted, {threads} threads" if limit else "sorted", *times])
        print(rows[-1], flush=True)
    print(common.markdown_table(["boxes", *(f"{n:,}" for n in FEW)], rows))


def on_gpu(arrays):
    return [torch.from_numpy(array).cuda() for array in arrays]


def compiled(inputs):
    return common.compile_for_gpu(ours(inputs), *inputs)


def checked(inputs, arrays):
    """Our operator, compiled, after its result is checked to be exact."""
    module = compiled(inputs)
    module.run()
    same([output.cpu().numpy() for output in common.outputs_of(module)], arrays)
    return module


def same(outputs, arrays):
    for output, expected in zip(outputs, class_by_class.batched_nms(*arrays, THRESHOLD)):
        if not np.array_equal(output, expected):
            raise SystemExit("the results differ from torchvision's class by class: nothing was timed")


def stock_ms(inputs):
    """Stock TVM on packed detections; its IoU threshold is inclusive, so its result may differ."""
    boxes, scores, ids = inputs
    if len(scores) > STOCK_LIMIT:
        return None
    data = torch.cat([ids[:, None].float(), scores[:, None], boxes], dim=1)[None].contiguous()
    count = torch.tensor([len(scores)], dtype=torch.int32, device="cuda")
    indices = torch.arange(len(scores), dtype=torch.int32, device="cuda")[None]
    variables = variables_of([data, count, indices])
    result = relay.vision.non_max_suppression(
        *variables, iou_threshold=THRESHOLD, id_index=0, score_index=1, coord_start=2, return_indices=True
    )
    return measure(
        common.compile_for_gpu(relay.Function(variables, result.astuple()), data, count, indices).run
    )


def measure(run):
    """The median time on the device in ms, or None if it takes too long."""
    trial = statistics.median(common.wall_once(run) for _ in range(3))
    if trial > TOO_SLOW_MS:
        return None
    if trial < SLOW_MS:
        return common.median_ms(run)
    return statistics.median(common.wall_once(run) for _ in range(5))


def wall_ms(run):
    trial = statistics.median(common.wall_once(run) for _ in range(3))
    if trial > TOO_SLOW_MS:
        return None
    return trial if trial > SLOW_MS else statistics.median(common.wall_once(run) for _ in range(50))


# --- both


def ours(inputs):
    variables = variables_of(inputs)
    return relay.Function(variables, batched_nms(*variables, THRESHOLD))


def variables_of(tensors):
    return [
        relay.var(f"x{i}", shape=tuple(tensor.shape), dtype=str(tensor.dtype).split(".")[-1])
        for i, tensor in enumerate(tensors)
    ]


def shifted(inputs):
    return lambda: torchvision_boxes._batched_nms_coordinate_trick(*inputs, THRESHOLD)


def loop(inputs):
    return lambda: torchvision_boxes._batched_nms_vanilla(*inputs, THRESHOLD)


def min_of(*values):
    return min((value for value in values if value is not None), default=None)


def ratio(times):
    return f"{min_of(times[1], times[2]) / times[0]:.1f}"


def cell(value):
    return "-" if value is None else value


# --- CPU


def compare_on_cpu(target):
    threads = min(2, os.cpu_count())
    torch.set_num_threads(threads)
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    rows = []
    for n, classes in CPU_CASES:
        arrays = clustered_detections(n, classes)
        inputs = [torch.from_numpy(array) for array in arrays]
        library = relay.build(tvm.IRModule.from_expr(ours(inputs)), target)
        module = graph_executor.GraphModule(library["default"](tvm.cpu()))
        for i, array in enumerate(arrays):
            module.set_input(i, array)
        module.run()
        same([module.get_output(i).numpy() for i in range(2)], arrays)
        times = [common.cpu_ms(run) for run in (module.run, shifted(inputs), loop(inputs))]
        rows.append([f"{n:,} / {classes}", *times, ratio(times)])
    facts = [f"- CPU: {common.cpu_name()}, {threads} threads", f"- Target: `{target}`"]
    facts += [f"- torch: {torch.__version__}, torchvision {torchvision.__version__}"]
    table = common.markdown_table(
        ["boxes / classes", "ours", "shifted", "loop", "best torchvision / ours"], rows
    )
    text = "\n".join([*facts, "", table, "", "Medians, in ms."])
    common.publish("nms", "Batched NMS on a CPU", text, common.cpu_name())


if __name__ == "__main__":
    main()
