"""Time the import of Mask R-CNN by this project's frontends versus TVM's own.

`python -m tests.benchmarks.bench_import` needs no GPU. Both start from the same file for ONNX or module for
PyTorch, and end with a Relay module; the time to trace the PyTorch module is included.
"""

import os
import platform
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import torchvision

import frontends
from tests.benchmarks._common import markdown_table, publish
from topi_ext import bootstrap
from tutorials.detectors import stock_import

from tvm import relay

HEIGHT, WIDTH = 224, 288  # the graph has the same nodes for any size


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    image = torch.rand(1, 3, HEIGHT, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "maskrcnn.onnx")
        torch.onnx.export(model, image, str(path), opset_version=16, input_names=["image"])
        nodes = len(onnx.load(str(path)).graph.node)
        rows = [
            row("ONNX", lambda: frontends.from_onnx(path), lambda: stock_onnx(path)),
            row(
                "PyTorch",
                lambda: frontends.from_pytorch(model, image),
                lambda: stock_import(model, image),
            ),
        ]
    table = markdown_table(["from", "TVM's own, s", "ours, s", "times faster"], rows)
    publish("import", "Importing Mask R-CNN", f"{environment(nodes)}\n\n{table}", machine="")


def row(source, ours, stock):
    ours_took, stock_took = took(ours), took(stock)
    return [source, f"{stock_took:.1f}", f"{ours_took:.1f}", f"{stock_took / ours_took:.1f}"]


def took(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def stock_onnx(path):
    return relay.frontend.from_onnx(onnx.load(str(path)))


def environment(nodes):
    facts = {
        "Model": f"maskrcnn_resnet50_fpn of torchvision {torchvision.__version__}, 3x{HEIGHT}x{WIDTH}; "
        f"{nodes} nodes in ONNX, opset 16",
        "TVM": bootstrap.tvm_in_use.version,
        "onnx, torch, NumPy": f"{onnx.__version__}, {torch.__version__}, {np.__version__}",
        "Python": platform.python_version(),
        "Machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, shared",
        "Times": "one run each, in one process, ours first",
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


if __name__ == "__main__":
    main()
