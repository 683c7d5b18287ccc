"""Time a detector in Relax with and without this project's passes, beside torch.

`python -m tests.benchmarks.bench_relax` takes some minutes on a CPU with TVM 0.27, most of them without the
passes. It prints the results file; what other benchmarks share is for Relay.
"""

import statistics
import subprocess
import time
from datetime import datetime, timezone

import torch
import torchvision

import frontends.relax
import topi_ext
from topi_ext.conv2d_nhwc import onednn
from tvm_passes.relax import convolution_pipeline

import tvm
from tvm import relax

SIZE = 320
CALLS, CALLS_WITHOUT = 10, 2


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = torchvision.models.detection
    model = models.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).eval()
    image = torch.rand(3, SIZE, SIZE)
    module, target = frontends.relax.from_pytorch(model, image), topi_ext.cpu_target()
    with torch.no_grad():
        of_torch = milliseconds(lambda: model([image]), CALLS)
    ours = milliseconds(call_of(convolution_pipeline(target)(module), target, image), CALLS)
    without = milliseconds(call_of(module, target, image), CALLS_WITHOUT)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    print(f"""# A detector in Relax

- Commit: {commit.strip()}
- Command: `python -m tests.benchmarks.bench_relax`
- Date: {datetime.now(timezone.utc):%Y-%m-%d}
- CPU: {processor()}
- TVM: {tvm.__version__}, oneDNN {onednn.version()}
- torch: {torch.__version__}, torchvision {torchvision.__version__}
- Target: `{target}`

Milliseconds of a call in float32 on one image, with one thread: the median of {CALLS} calls, without the
passes of {CALLS_WITHOUT}, after one to warm up. It is the time of the processor, which other work on the
machine disturbs less than the host's clock.

|                                 |    ours | without passes | torch |
| ------------------------------- | ------: | -------------: | ----: |
| Faster R-CNN MobileNet, 320x320 | {ours:7.1f} | {without:14.1f} | {of_torch:5.1f} |""")


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
