"""Time detectors in Relax with and without this project's passes, beside torch.

`OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_relax` takes some minutes on a CPU with TVM 0.27, most of
them without the passes. It prints the results file; what other benchmarks share is for Relay.
"""

import os
import statistics
import subprocess
import time
from datetime import datetime, timezone

import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.models import detection

import frontends.relax
import topi_ext
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.relax import convolution_pipeline

import tvm
from tvm import relax

CALLS, CALLS_WITHOUT = 10, 2
RANDOM = {"weights": None, "weights_backbone": None}
THREADS = int(os.environ["TVM_NUM_THREADS"])  # which has become that of OpenMP


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    rows = [
        row("Faster R-CNN MobileNet, 320x320", faster_rcnn(), torch.rand(3, 320, 320), CALLS_WITHOUT),
        row("Mask R-CNN R50, 256x320", *mask_rcnn(torch.rand(3, 256, 320))),
    ]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    table = "\n".join(rows)
    print(f"""# Detectors in Relax

- Commit: {commit.strip()}
- Command: `python -m tests.benchmarks.bench_relax`
- Date: {datetime.now(timezone.utc):%Y-%m-%d}
- CPU: {processor()}
- Threads: {THREADS}, by `OMP_NUM_THREADS`
- TVM: {tvm.__version__}, oneDNN {onednn.version()}
- torch: {torch.__version__}, torchvision {torchvision.__version__}
- Target: `{topi_ext.cpu_target()}`

Milliseconds of a call in float32 on one image: the median of {CALLS} calls, without the
passes of {CALLS_WITHOUT}, after one to warm up. It is the time of the processor, which other work
on the machine disturbs less than the host's clock. Weights are random. Faster R-CNN finds nothing; Mask R-CNN
finds 100 objects, which are compared: the column has the largest difference of a score from torch's.

| detector                        |   ours | without passes |  torch | difference |
| ------------------------------- | -----: | -------------: | -----: | ---------: |
{table}""")


def row(name, model, image, calls_without=0):
    """A row of the table; without the passes, a large network would take minutes."""
    module, target = frontends.relax.from_pytorch(model, image), topi_ext.cpu_target()
    call = call_of(convolution_pipeline(target)(module), target, image)
    with torch.no_grad():
        difference = largest_difference(call(), model([image])[0])
        of_torch = milliseconds(lambda: model([image]), CALLS)
    ours = milliseconds(call, CALLS)
    without = "-"
    if calls_without:
        without = f"{milliseconds(call_of(module, target, image), calls_without):.1f}"
    return f"| {name:31} | {ours:6.1f} | {without:>14} | {of_torch:6.1f} | {difference:>10} |"


def faster_rcnn():
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(**RANDOM).eval()


def mask_rcnn(image):
    """The model and the image. Its features keep their scale, and its scores differ, as in a trained one."""
    options = {"min_size": 256, "max_size": 320, "box_score_thresh": 0.3}
    model = detection.maskrcnn_resnet50_fpn(**RANDOM, **options).eval()
    predictor = model.roi_heads.box_predictor
    nn.init.normal_(predictor.cls_score.weight, std=0.3)
    nn.init.normal_(predictor.bbox_pred.weight, std=0.05)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.register_forward_pre_hook(normalize_these)
    with torch.no_grad():
        model([image])
    for norm in model.modules():
        norm._forward_pre_hooks.clear()
    return model, image


def normalize_these(norm, arguments):
    (data,) = arguments
    norm.running_mean.copy_(data.mean((0, 2, 3)))
    norm.running_var.copy_(data.var((0, 2, 3)))


def largest_difference(ours, expected):
    """Of the scores; a dash where there are none."""
    _, scores, *_, count = (each.numpy() for each in ours)
    assert count == len(expected["scores"])
    return f"{np.abs(scores[:count] - expected['scores'].numpy()).max():.1e}" if count else "-"


def call_of(module, target, image):
    with target:
        executable = tvm.compile(module, target=target)
    machine, array = relax.VirtualMachine(executable, tvm.cpu()), tvm.runtime.tensor(image.numpy())
    return lambda: machine["main"](array)


def milliseconds(call, calls):
    call()
    taken = []
    for _ in range(calls):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3


def processor():
    with open("/proc/cpuinfo") as lines:
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


if __name__ == "__main__":
    main()
