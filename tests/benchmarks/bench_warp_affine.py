"""Time affine warps of batches of images: `python -m tests.benchmarks.bench_warp_affine`.

The peers are torch's `affine_grid` and `grid_sample`, one by one and under `torch.compile`, given matrices in
their own units; and OpenCV, image by image on one core, where the images have its layout.

Our result is compared with torch's, or where it has the rounding of OpenCV 4 with the NumPy reference, before
ours is timed. `--target llvm` (or any other LLVM target) times the CPU instead, with as many threads as
`--threads` says.
"""

import argparse
import os

import cv2
import numpy as np
import torch
from torch.nn import functional

import topi_ext
import topi_ext.torch
from tests.benchmarks import _common as common
from tests.ops.warps import random_images, rotations
from topi_ext.warp_affine.reference import warp_affine as reference

import tvm
from tvm import relay

CASES = [  # number, height and width, layout, types of the data and of the result, mode
    (64, (512, 512), "NCHW", "float32", "float32", "exact"),
    (64, (512, 512), "NCHW", "uint8", "float16", "exact"),
    (64, (512, 512), "NHWC", "uint8", "float16", "exact"),
    (64, (512, 512), "NHWC", "uint8", "uint8", "exact"),
    (64, (512, 512), "NHWC", "uint8", "uint8", "cv2_fixed"),
    (256, (224, 224), "NHWC", "uint8", "float16", "exact"),
    (8, (1080, 1920), "NCHW", "float16", "float16", "exact"),
]
# Of noise from 0 to 255. torch's places are float32, and results may be float16 or rounded to integers.
TOLERANCE = {"float32": 0.1, "float16": 0.25, "uint8": 1.0}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cuda", help="cuda, or a target of LLVM to time the CPU")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    args = parser.parse_args(arguments)
    compare_on_gpu() if args.target == "cuda" else compare_on_cpu(args.target, args.threads)


def function_of(number, size, layout, dtype, out_dtype, mode):
    extent = {"N": number, "C": 3, "H": size[0], "W": size[1]}
    data = relay.var("data", shape=[extent[axis] for axis in layout], dtype=dtype)
    matrix = relay.var("matrix", shape=(number, 2, 3))
    call = topi_ext.warp_affine(data, matrix, size, mode=mode, layout=layout, out_dtype=out_dtype)
    return relay.Function([data, matrix], call)


def inputs_of(number, size, layout, dtype, *_):
    return random_images(number, size, 3, layout, dtype), rotations(number, size).astype("float32")


def by_cv2(data, matrices):
    """OpenCV on each image of (N, H, W, C), into preallocated memory."""
    results = np.empty_like(data)

    def run():
        for image, matrix, result in zip(data, matrices, results):
            cv2.warpAffine(image, matrix, image.shape[1::-1], dst=result)
        return results

    return run


def name_of(number, size, layout, dtype, out_dtype, mode):
    types = dtype if out_dtype == dtype else f"{dtype} to {out_dtype}"
    return f"{number} x {size[0]}x{size[1]}, {layout} {types}" + (", cv2_fixed" if mode != "exact" else "")


def same(found, expected, tolerance, peer):
    difference = np.abs(found.astype("float32") - expected.astype("float32")).max()
    if difference > tolerance:
        raise SystemExit(f"the results differ from {peer}'s by {difference}: nothing was timed")


def check_cv2_fixed(found, data, matrices):
    """Compare with the reference, which rounds like OpenCV 4, bit for bit; OpenCV 5 rounds differently."""
    few = slice(4)
    expected = reference(data[few], matrices[few], data.shape[1:3], mode="cv2_fixed", layout="NHWC")
    same(found[few], expected, 0, "the reference")


# --- GPU


def compare_on_gpu():
    common.require_gpu()
    cv2.setNumThreads(1)
    bandwidth = common.copy_bandwidth()
    header = ["", "ours", "ours, from torch", "torch.compile", "torch", "torch.compile / ours", "floor"]
    header += ["ours, from torch, with the host", "torch.compile, with the host", "OpenCV"]
    rows = [row(case, bandwidth) for case in CASES]
    text = [
        common.environment(bandwidth),
        f"- OpenCV: {cv2.__version__}, on one core of {common.cpu_name()}",
        "",
    ]
    text += [common.markdown_table(header, rows), "", NOTES]
    common.publish("warp_affine", "Affine warps", "\n".join(text))


NOTES = """Images of 3 channels, each rotated by up to 30 degrees, scaled by 0.8 to 1.25 and shifted; results
have the same size. ours: a kernel for these shapes. from torch: by `topi_ext.torch.warp_affine`, whose kernel
takes any shapes. torch: `affine_grid` and `grid_sample` in float32, with the result converted; NHWC is its
memory format channels_last. floor: the time to read all images and write the results once at the bandwidth of
a copy. with the host: from the call to the end of the work, by the host's clock."""


def row(case, bandwidth):
    number, size, layout, _, out_dtype, mode = case
    arrays = inputs_of(*case)
    data, matrices = (torch.from_numpy(array).cuda() for array in arrays)
    module = common.compile_for_gpu(function_of(*case), data, matrices)
    module.run()
    (found,) = common.outputs_of(module)

    def from_torch():
        return topi_ext.torch.warp_affine(data, matrices, size, mode=mode, layout=layout, out_dtype=out_dtype)

    theta = torch.from_numpy(in_units_of_torch(arrays[1], size)).cuda()
    kind = getattr(torch, out_dtype)

    def by_torch():
        planes = data.permute(0, 3, 1, 2) if layout == "NHWC" else data
        grid = functional.affine_grid(theta, (number, 3, *size), align_corners=True)
        moved = functional.grid_sample(planes.float(), grid, align_corners=True)
        moved = moved.round() if out_dtype == "uint8" else moved
        memory = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        return moved.to(kind, memory_format=memory)

    compiled = torch.compile(by_torch)
    same(from_torch().cpu().numpy(), found.cpu().numpy(), 0, "the other kernel")
    if mode == "exact":
        expected = by_torch().permute(0, 2, 3, 1) if layout == "NHWC" else by_torch()
        same(found.cpu().numpy(), expected.cpu().numpy(), TOLERANCE[out_dtype], "torch")
    else:
        check_cv2_fixed(found.cpu().numpy(), *arrays)
    ours, theirs = common.median_ms(module.run), common.median_ms(compiled)
    floor = (data.nbytes + found.numel() * found.element_size()) / bandwidth * 1e3
    cells = [name_of(*case), ours, common.median_ms(from_torch), theirs, common.median_ms(by_torch)]
    cells += [f"{theirs / ours:.1f}", floor, common.wall_ms(from_torch), common.wall_ms(compiled)]
    cells += [common.cpu_ms(by_cv2(*arrays)) if layout == "NHWC" else "-"]
    print(cells, flush=True)
    return cells


def in_units_of_torch(matrices, size):
    """Matrices from places in the result to places in the data, both from -1 to 1."""
    height, width = size
    to_units = np.array([[2 / (width - 1), 0, -1], [0, 2 / (height - 1), -1], [0, 0, 1]])
    square = np.concatenate([matrices, np.tile([[[0, 0, 1]]], (len(matrices), 1, 1))], axis=1)
    return (to_units @ np.linalg.inv(square) @ np.linalg.inv(to_units))[:, :2].astype("float32")


# --- CPU


def compare_on_cpu(target, threads):
    os.environ["TVM_NUM_THREADS"] = str(threads)
    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)
    rows = [row_on_cpu(case, target) for case in CASES if case[0] == 64]
    facts = [f"- CPU: {common.cpu_name()}, {threads} threads", f"- Target: `{target}`"]
    facts += [
        f"- OpenCV: {cv2.__version__}, into preallocated memory",
        f"- torch: {torch.__version__}",
    ]
    table = common.markdown_table(["", "ours", "OpenCV", "torch", "OpenCV / ours", "torch / ours"], rows)
    text = "\n".join([*facts, "- Times: median, in ms", "", table])
    machine = f"{common.cpu_name()} {threads} threads"
    common.publish("warp_affine", "Affine warps on a CPU", text, machine)


def row_on_cpu(case, target):
    number, size, layout, dtype, out_dtype, _ = case
    arrays = inputs_of(*case)
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(tvm.IRModule.from_expr(function_of(*case)), target)
    module = tvm.contrib.graph_executor.GraphModule(library["default"](tvm.cpu()))
    for i, array in enumerate(arrays):
        module.set_input(i, array)
    module.run()
    planes = torch.from_numpy(
        np.ascontiguousarray(np.moveaxis(arrays[0], 3, 1)) if layout == "NHWC" else arrays[0]
    )
    theta = torch.from_numpy(in_units_of_torch(arrays[1], size))

    def by_torch():
        grid = functional.affine_grid(theta, (number, 3, *size), align_corners=True)
        return functional.grid_sample(planes.float(), grid, align_corners=True)

    ours, theirs = common.cpu_ms(module.run), common.cpu_ms(by_torch)
    with_cv2 = by_cv2(*arrays) if layout == "NHWC" and out_dtype == dtype else None
    if case[-1] == "cv2_fixed":
        check_cv2_fixed(module.get_output(0).numpy(), *arrays)
    opencv = common.cpu_ms(with_cv2) if with_cv2 else "-"
    ratio = f"{opencv / ours:.2f}" if with_cv2 else "-"
    cells = [name_of(*case), ours, opencv, theirs, ratio, f"{theirs / ours:.1f}"]
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
