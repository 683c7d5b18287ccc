"""Time what is transposed on a GPU, by TVM's schedule and by tiles in registers.

`python -m tests.benchmarks.bench_transposes`. The peer is torch's copy of the same permutation, in float16.
All three results are compared before anything is timed.
"""

import numpy as np
import torch

from tests.benchmarks import _common as common
from topi_ext.corrections import transposes_on_cuda

from tvm import relay, topi

CASES = [  # shape and axes
    ((1, 64, 56, 56), (0, 2, 3, 1)),
    ((1, 56, 56, 64), (0, 3, 1, 2)),
    ((1, 256, 200, 336), (0, 2, 3, 1)),
    ((1, 200, 336, 256), (0, 3, 1, 2)),
    ((8, 128, 64, 64), (0, 2, 3, 1)),
    ((1, 180, 128, 128), (0, 2, 3, 1)),
    ((1, 128, 128, 180), (0, 3, 1, 2)),
    ((1, 256, 16, 16), (0, 2, 3, 1)),
    ((1, 80, 80, 255), (0, 3, 1, 2)),  # the heads of YOLO
    ((1, 255, 80, 80), (0, 2, 3, 1)),
    ((1, 3, 800, 1344), (0, 2, 3, 1)),
    ((1, 800, 1344, 3), (0, 3, 1, 2)),
    ((1, 8, 400, 672), (0, 2, 3, 1)),
    ((1, 400, 672, 8), (0, 3, 1, 2)),
    ((1, 16, 400, 672), (0, 2, 3, 1)),
    ((1, 400, 672, 12), (0, 3, 1, 2)),
    ((64, 12, 64, 32), (0, 1, 3, 2)),
    ((1, 4096, 3, 6, 32), (2, 0, 3, 4, 1)),
]
HEADER = "transposes", "TVM's", "ours", "TVM's / ours", "torch", "torch / ours", "floor"


def main():
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    rows = []
    for case in CASES:
        rows.append(row(*case, bandwidth))
        print(rows[-1], flush=True)
    table = common.markdown_table(HEADER, rows)
    common.publish("transposes", "Transposes", f"{common.environment(bandwidth)}\n\n{table}\n\n{NOTES}")


NOTES = """Milliseconds of the device. A ReLU and the sum with a number come before, in the same kernel; torch
copies only. floor: the time to read the tensor and write the result once at the bandwidth of a copy."""


def row(shape, axes, bandwidth):
    data = torch.randn(shape, dtype=torch.float16, device="cuda")

    def by_torch():
        return data.permute(axes).contiguous()

    expected = (torch.relu(data) + 1).permute(axes).cpu().numpy()
    stock, ours = (time(shape, axes, data, expected, is_ours) for is_ours in (False, True))
    theirs = common.median_ms(by_torch)
    floor = float(np.prod(shape) * 4 / bandwidth * 1e3)
    name = f"{'x'.join(map(str, shape))} by {axes}"
    return [name, stock, ours, f"{stock / ours:.2f}", theirs, f"{theirs / ours:.2f}", floor]


def time(shape, axes, data, expected, is_ours):
    """Milliseconds of a kernel, if its result is right."""
    x = relay.var("x", shape=shape, dtype="float16")
    raised = relay.add(relay.nn.relu(x), relay.const(1, "float16"))
    function, ours = relay.Function([x], relay.transpose(raised, axes)), topi.cuda.schedule_injective
    try:
        if not is_ours:
            topi.cuda.schedule_injective = transposes_on_cuda.schedule_otherwise
        module = common.compile_for_gpu(function, data)
    finally:
        topi.cuda.schedule_injective = ours
    module.run()
    if not np.array_equal(module.get_output(0).numpy(), expected):
        raise SystemExit(f"{shape}, {axes}: the results differ: nothing was timed")
    return common.median_ms(module.run)


if __name__ == "__main__":
    main()
