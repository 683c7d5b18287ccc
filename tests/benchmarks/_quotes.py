"""The source of each figure that the README and the guides quote: a cell of a table in `results/`.

QUOTES maps a page and a line of it to the sources of the figures there, in order. The line is a row of a
table, identified by a text in its first cell, or a paragraph, identified by a text in it. A test compares.
None stands for figures that are not of results.
"""

import re
from dataclasses import dataclass

from tests.benchmarks._common import RESULTS


@dataclass(frozen=True)
class Cell:
    """A cell of a results file; `table` counts the tables of the file from 0."""

    file: str
    row: str
    column: str
    table: int = 0

    @property
    def value(self):
        header, _, *rows = tables(self.file)[self.table]
        (row,) = (cells for cells in rows if cells[0] == self.row)
        return float(row[header.index(self.column)].strip("*").replace(",", ""))


@dataclass(frozen=True)
class Ratio:
    """The first cell divided by the second: a ratio that the results file itself does not have."""

    peer: Cell
    ours: Cell

    @property
    def value(self):
        return self.peer.value / self.ours.value


def tables(file):
    """The tables of a results file, as lists of rows of cells."""
    text = (RESULTS / f"{file}.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [[split(line) for line in table.splitlines()] for table in found]


def split(line):
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def cells(file, row, *columns, table=0):
    """Several cells of one row."""
    return [Cell(file, row, column, table) for column in columns]


def _warp(size, *columns):
    return cells("warp_affine-nvidia-h200", f"64 x 512x512, {size}", *columns)


def _nms(row):
    peer = "loop" if row == "90,000 / 90" else "shifted"
    return cells("nms-nvidia-h200", row, peer, "ours", "best torchvision / ours")


def _on_cpu(row, peer):
    return cells("models-amd-epyc", row, "ours", peer, "best peer / ours")


def _on_h200(row, peer="torch.compile, default"):
    return cells("models-nvidia-h200", row, "ours", peer, "best torch / ours")


MASK_RCNN, BATCH = "detection-nvidia-h200", "detection_batch-nvidia-h200"
EAGER, AUTOCAST, COMPILED = "eager, float32", "eager, autocast", "torch.compile, autocast"
RATIO = "best torchvision / ours"
NETWORK = ("ours", "torch.compile", "best torch / ours")
ROI = "roi-nvidia-h200"
RELAX = "relax-nvidia-h200"
SCENES = ("OpenCV", "ours", "OpenCV / ours")
CAMERA = "1 x 1080x1920 NHWC uint8 to 768x1344"
# The fastest of the rows that pool the same regions, by layout and type.
POOLED = [
    Cell(ROI, "1000 x 7x7, NHWC float16", "ours"),
    Cell(ROI, "1000 x 7x7, NHWC float32", "torchvision"),
]
POOLED.append(Ratio(POOLED[1], POOLED[0]))

ENLARGED = "int8-super-resolution-nvidia-h200"
ENLARGING = "EDSR-baseline x4, 540x960", "Sub-pixel network of apache/tvm #4523, 720x1280"
OF_ENLARGED = [Cell(ENLARGED, f"{name}, batch 1, int8: times float16", "measured", 5) for name in ENLARGING]
OF_ENLARGED += [Cell(ENLARGED, name, dtype, 2) for dtype in ("int8", "float16") for name in ENLARGING]

FASTER_RCNN, MASK_RCNN_R50 = "Faster R-CNN MobileNet, 320x320", "Mask R-CNN R50, 256x320"
QUOTES = {
    "README.md": {
        "Mask R-CNN R50": _on_h200("Mask R-CNN R50", "eager, float32"),
        **{name: _on_h200(name) for name in ("RetinaNet R50", "YOLO11s", "RT-DETR R50", "RRDB x4")},
        "a batch of 8": cells(BATCH, "pasted masks", "ours", EAGER, RATIO),
        "EDSR-baseline x4": cells("subpixel-nvidia-h200", "EDSR-baseline x4, 540x960", *NETWORK),
        "of 20,000 boxes": cells("nms-nvidia-h200", "20,000 / 80", "ours", "shifted", RATIO),
        "RoIAlign": POOLED,
        "Mask R-CNN, 800x1333": _on_cpu("Mask R-CNN R50, 800x1333", "OpenVINO"),
        "RetinaNet, 800x1333": _on_cpu("RetinaNet R50, 800x1333", "OpenVINO"),
        "YOLOv8n, 640x640": _on_cpu("YOLOv8n, 640x640", "ONNX Runtime"),
        "RT-DETR, 640x640": _on_cpu("RT-DETR R50, 640x640", "OpenVINO"),
        "EDSR-baseline x4, 180x320": _on_cpu("EDSR-baseline x4, 180x320", "OpenVINO"),
    },
    "docs/relax.md": {
        FASTER_RCNN: cells("relax-amd-epyc", FASTER_RCNN, "ours", "torch", "without passes"),
        MASK_RCNN_R50: cells("relax-amd-epyc", MASK_RCNN_R50, "ours", "torch"),
        "Mask R-CNN R50, a call": cells(RELAX, "ms", "Relax", "Relay", "torchvision", table=1),
        **{
            name: cells(RELAX, row, "Relax", "Relay", "torch")
            for name, row in (
                ("NMS of 20,000", "NMS, 20,000 boxes of 80 classes"),
                ("RoIAlign of 1,000", "RoIAlign, 1,000 regions, float16 NHWC"),
                ("100 masks", "100 masks pasted into 800x1333"),
                ("256 filters", "Convolution, 256 filters of 50x84x256"),
            )
        },
        "TVM 0.27 compiles for CUDA neither": cells(RELAX, "Convolution, 64 filters of 200x336x64", "TVM"),
        # lines of code, which `tests/relax/test_lines.py` counts
        **dict.fromkeys(("operators and their kernels", "passes", "runtime", "importers")),
    },
    "docs/guides/camera.md": {
        layout: cells(
            "preprocess-nvidia-h200",
            f"{CAMERA} {layout} float16",
            *("torch.compile", "stock TVM", "ours", "torch.compile / ours"),
        )
        for layout in ("NHWC", "NCHW")
    },
    "docs/guides/detection.md": {
        "masks pasted into images": cells(
            MASK_RCNN, "pasted masks", "ours", EAGER, AUTOCAST, COMPILED, RATIO
        ),
        "masks of 28x28": cells(MASK_RCNN, "raw masks", "ours", EAGER, AUTOCAST, RATIO),
        "a batch of 8": cells(BATCH, "pasted masks", "ours", EAGER, AUTOCAST, RATIO),
        "Float16 rounds": cells(
            "detection_accuracy-nvidia-h200", "all", "ours", "torch, TF32", "torch, autocast"
        ),
        **{row: _nms(row) for row in ("1,000 / 80", "4,507 / 5", "20,000 / 80", "90,000 / 90")},
        "1,000 regions": POOLED,
        "100 masks": cells(ROI, "paste 100 masks, float32", "ours", "torchvision", "torchvision / ours"),
        "In float16 NHWC, torchvision": cells(ROI, "1000 x 7x7, NHWC float16", "torchvision"),
    },
    "docs/guides/int8.md": {"whose result is an image": OF_ENLARGED},
    "docs/guides/operators-from-torch.md": {
        "float32, [H200]": _warp(
            "NCHW float32", "torch.compile", "ours", "torch.compile / ours", "ours, from torch"
        ),
        "uint8 to float16, H200": _warp(
            "NCHW uint8 to float16", "torch.compile", "ours", "torch.compile / ours", "ours, from torch"
        ),
        "uint8, NHWC": cells(
            "warp_affine-amd-epyc-1-threads",
            "64 x 512x512, NHWC uint8",
            *("OpenCV", "ours", "OpenCV / ours"),
        ),
        "With the host included": _warp(
            "NCHW float32", "ours, from torch, with the host", "torch.compile, with the host"
        ),
        "at their best with few channels": cells(
            "conv2d_nhwc-nvidia-h200",
            "720x1280,64to64,3x3,float16,padding=1,activation=('leaky_relu',0.1)",
            "ours",
        ),
    },
    "docs/guides/scenes.md": {
        f"{what}, NHWC float32, {where}": cells(file, f"{what}, NHWC float32", *SCENES)
        for what, where, file in (
            ("boxes", "[H200]", "rasterize-nvidia-h200"),
            ("map", "H200", "rasterize-nvidia-h200"),
            ("boxes", "[one core", "rasterize-amd-epyc"),
            ("map", "one core", "rasterize-amd-epyc"),
        )
    },
    "docs/guides/super-resolution.md": {
        name: cells("subpixel-nvidia-h200", row, *(NETWORK[at] for at in (1, 0, 2)))
        for name, row in (
            ("two residual blocks", "thread, 720x1280"),
            ("ESPCN x4", "ESPCN x4, 540x960"),
            ("EDSR-baseline x4", "EDSR-baseline x4, 540x960"),
        )
    },
}
