"""Time rasterisation versus OpenCV: `python -m tests.benchmarks.bench_rasterize`.

The batch has samples of 224x224 pixels, with 11 frames of 60 agents each, in a town of about 2,000 lanes.
OpenCV draws it as l5kit does, sample by sample on one core, and drops each image before it draws the next.
Ours draws all samples at once. Both start from agents and lanes in world coordinates, and must draw identical
images before they are timed.

`--target llvm` (or any other LLVM target) times the CPU instead.
"""

import argparse
import os
from collections import deque

import cv2
import numpy as np
import torch

import topi_ext
from frontends.l5kit import RenderContext, SemanticMap, SemBoxRasterizer, boxes_by_layer
from frontends.l5kit.map import PALETTE
from frontends.l5kit.records import raster_poses
from tests.benchmarks import _common as common
from tests.frontends.l5kit_by_cv2 import DrawnByCv2
from tests.frontends.traffic import town, traffic

import tvm
from tvm import relay
from tvm.contrib import graph_executor

SAMPLES, FRAMES, AGENTS, BLOCKS = 128, 11, 60, 10
SIZE, THRESHOLD = (224, 224), 0.5
CONTEXT = RenderContext(np.array(SIZE), np.array([0.5, 0.5]), np.array([0.25, 0.5]))
KINDS = [("NCHW", "float32"), ("NHWC", "float32"), ("NHWC", "uint8")]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cuda", help="cuda, or a target of LLVM to time the CPU")
    args = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    compare_on_gpu() if args.target == "cuda" else compare_on_cpu(args.target)


class Scene:
    """The batch: as l5kit's records, as inputs of the operators, and as OpenCV draws it."""

    def __init__(self):
        made = town(BLOCKS)
        self.batch = traffic(made, SAMPLES, FRAMES, AGENTS)
        self.map = SemanticMap(made.lanes, made.crosswalks)
        self.matrices = CONTEXT.raster_from_poses(raster_poses(self.batch.frames, self.batch.selected))
        batch, styles = self.batch, self.map.styles([faces[0] for faces in self.batch.tl_faces])
        self.boxes = (
            *boxes_by_layer(batch.frames, batch.agents, batch.selected, FRAMES, THRESHOLD),
            self.matrices,
        )
        self.shapes = self.map.points, self.map.offsets, styles, self.matrices
        self._drawn = DrawnByCv2(CONTEXT, THRESHOLD, FRAMES - 1, made.lanes, made.crosswalks)
        seen = np.mean([len(self._drawn.seen(self._drawn.lane_bounds, matrix)) for matrix in self.matrices])
        self.facts = (
            f"- Samples: {SAMPLES}; lanes: {len(made.lanes)}, of which in a sample's square {seen:.0f}"
        )

    def boxes_by_cv2(self):
        parts = zip(self.batch.frames, self.batch.agents, self.batch.selected, self.matrices)
        return (self._drawn.boxes(*part) for part in parts)

    def map_by_cv2(self):
        parts = zip(self.batch.tl_faces, self.matrices)
        return (self._drawn.map(faces[0], matrix) for faces, matrix in parts)

    def both_by_cv2(self):
        return (self._drawn.rasterize(*sample) for sample in zip(*self.batch))


def cv2_ms(draw):
    return common.cpu_ms(lambda: deque(draw(), maxlen=0))


def functions(scene, layout, dtype):
    """By name, a Relay function and its inputs, and what OpenCV draws."""
    boxes, shapes, options = (
        variables_of(scene.boxes),
        variables_of(scene.shapes),
        {"layout": layout, "dtype": dtype},
    )
    drawn_boxes = topi_ext.rasterize_boxes(*boxes, SIZE, mode="parity", **options)
    drawn_map = topi_ext.rasterize_map(*shapes, SIZE, palette=PALETTE.values(), **options)
    kind = f"{layout} {dtype}"
    return {
        f"boxes, {kind}": (relay.Function(boxes, drawn_boxes), scene.boxes, scene.boxes_by_cv2),
        f"map, {kind}": (relay.Function(shapes, drawn_map), scene.shapes, scene.map_by_cv2),
    }


def variables_of(arrays):
    return [relay.var(f"x{i}", shape=array.shape, dtype=str(array.dtype)) for i, array in enumerate(arrays)]


def same(found, expected, layout, dtype):
    found = np.moveaxis(found, 1, -1) if layout == "NCHW" else found
    expected = np.stack(list(expected))
    expected = np.round(expected * 255).astype("uint8") if dtype == "uint8" else expected
    if not np.array_equal(found, expected):
        raise SystemExit(f"{(found != expected).mean():.1e} of the images differ: nothing was timed")


# --- GPU


def compare_on_gpu():
    common.require_gpu()
    bandwidth, scene, rows, theirs = common.copy_bandwidth(), Scene(), [], {}
    for layout, dtype in KINDS:
        for name, (function, arrays, by_cv2) in functions(scene, layout, dtype).items():
            module = common.compile_for_gpu(function, *(torch.from_numpy(array).cuda() for array in arrays))
            module.run()
            (found,) = common.outputs_of(module)
            same(found.cpu().numpy(), by_cv2(), layout, dtype)
            if by_cv2 not in theirs:
                theirs[by_cv2] = cv2_ms(by_cv2)
            floor = found.numel() * found.element_size() / bandwidth * 1e3
            rows.append(
                row(name, common.median_ms(module.run), theirs[by_cv2], floor, common.wall_ms(module.run))
            )
    rows += [from_records(scene, layout) for layout in ("NCHW", "NHWC")]
    header = ["", "ours", "OpenCV", "OpenCV / ours", "floor", "ours, with the host"]
    text = [
        common.environment(bandwidth),
        f"- OpenCV: {cv2.__version__}, on {common.cpu_name()}",
        scene.facts,
        "",
    ]
    text += [common.markdown_table(header, rows), "", NOTES]
    common.publish("rasterize", "Rasterisation of scenes", "\n".join(text))


NOTES = f"""Each sample: {SIZE[0]}x{SIZE[1]} pixels, {FRAMES} frames of {AGENTS} agents and the ego in
{2 * FRAMES} channels, and the map in 3. OpenCV: as l5kit calls it, with NumPy's transforms and float32
images, on one core; its time is the same for all types. Ours: from boxes and points in world coordinates on
the device. floor: the time to write the result at the bandwidth of a copy. with the host: from the call to
the end of the work, by the host's clock. from records: `SemBoxRasterizer`, from l5kit's structured
arrays on the host to images of {2 * FRAMES + 3} channels on the device."""


def from_records(scene, layout):
    options = {"target": "cuda", "layout": layout, "output": "torch"}
    rasterizer = SemBoxRasterizer(CONTEXT, THRESHOLD, FRAMES - 1, scene.map, **options)
    same(rasterizer.rasterize(*scene.batch).cpu().numpy(), scene.both_by_cv2(), layout, "float32")
    ours, theirs = common.wall_ms(lambda: rasterizer.rasterize(*scene.batch)), cv2_ms(scene.both_by_cv2)
    return [f"from records, {layout} float32", "-", theirs, f"{theirs / ours:.1f}", "-", ours]


def row(name, ours, theirs, *rest):
    cells = [name, ours, theirs, f"{theirs / ours:.1f}", *rest]
    print(cells, flush=True)
    return cells


# --- CPU


def compare_on_cpu(target):
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    scene, rows, theirs = Scene(), [], {}
    for layout, dtype in KINDS:
        for name, (function, arrays, by_cv2) in functions(scene, layout, dtype).items():
            with tvm.transform.PassContext(opt_level=3):
                library = relay.build(tvm.IRModule.from_expr(function), target)
            module = graph_executor.GraphModule(library["default"](tvm.cpu()))
            for i, array in enumerate(arrays):
                module.set_input(i, array)
            module.run()
            same(module.get_output(0).numpy(), by_cv2(), layout, dtype)
            if by_cv2 not in theirs:
                theirs[by_cv2] = cv2_ms(by_cv2)
            rows.append(row(name, common.cpu_ms(module.run), theirs[by_cv2]))
    facts = [
        f"- CPU: {common.cpu_name()}, {os.environ['TVM_NUM_THREADS']} thread(s)",
        f"- Target: `{target}`",
    ]
    facts += [f"- OpenCV: {cv2.__version__}, one thread", scene.facts]
    table = common.markdown_table(["", "ours", "OpenCV", "OpenCV / ours"], rows)
    text = "\n".join([*facts, "", table, "", CPU_NOTES])
    common.publish("rasterize", "Rasterisation of scenes on a CPU", text, common.cpu_name())


CPU_NOTES = f"""Medians, in ms, for the whole batch. Each sample: {SIZE[0]}x{SIZE[1]} pixels, {FRAMES}
frames of {AGENTS} agents and the ego in {2 * FRAMES} channels, and the map in 3. OpenCV: as l5kit calls it,
with NumPy's transforms and float32 images; its time is the same for all types. Ours: from boxes and points
in world coordinates."""


if __name__ == "__main__":
    main()
