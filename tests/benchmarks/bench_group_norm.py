"""Time normalizations of groups of channels: `python -m tests.benchmarks.bench_group_norm`.

The peer is torch's `group_norm` with a ReLU behind it, alone and under `torch.compile`, on channels_last data
in float16 with gamma and beta. Our results are compared with torch's in float32 before anything is timed.
"""

import argparse

import torch
from torch.nn import functional

from tests.benchmarks import _common as common
from topi_ext import group_norm

from tvm import relay

# (images, height, width, channels) and groups: the heads of FCOS at 800x1333, and instances
SHAPES = [
    *[((1, *size, 256), 32) for size in ((100, 168), (50, 84), (25, 42), (13, 21), (7, 11))],
    ((1, 512, 512, 32), 32),
    ((8, 56, 56, 128), 32),
]
TOLERANCE = 2e-2  # of numbers up to 10, rounded to float16


def main(arguments=None):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["float16", "ours", "torch.compile", "torch", "torch / ours", "torch.compile / ours", "floor"]
    rows = [row(*each, bandwidth) for each in SHAPES]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("group_norm", "Normalization of groups of channels", "\n".join(text))


NOTES = """NHWC, groups after the slash, ReLU behind. Data are float16; gamma and beta are float32 for ours,
and float16 for torch. floor: the time to read the data and write the result once at the bandwidth of a copy;
the L2 cache can be faster than that."""


def row(shape, groups, bandwidth):
    torch.manual_seed(0)
    channels = shape[-1]
    data = torch.randn(shape, device="cuda", dtype=torch.float16)
    gamma, beta = (torch.rand(channels, device="cuda") for _ in range(2))
    variables = [
        relay.var(name, shape=each.shape, dtype=str(each.dtype).split(".")[-1])
        for name, each in (("data", data), ("gamma", gamma), ("beta", beta))
    ]
    result = group_norm(*variables, groups=groups, axis=-1, activation="relu")
    module = common.compile_for_gpu(relay.Function(variables, result), data, gamma, beta)
    module.run()
    (found,) = common.outputs_of(module)

    def by(function, images, *affine):
        return functional.relu(function(images, groups, *affine))

    images = data.permute(0, 3, 1, 2)  # channels_last in torch's terms
    expected = by(functional.group_norm, images.float(), gamma, beta).permute(0, 2, 3, 1)
    name, difference = (
        f"{'x'.join(map(str, shape))} / {groups}",
        (found.float() - expected).abs().max().item(),
    )
    if not difference <= TOLERANCE:
        raise SystemExit(f"{name}: the result differs from torch's by {difference}: nothing was timed")
    affine = gamma.half(), beta.half()

    def by_torch():
        with torch.inference_mode():
            return by(functional.group_norm, images, *affine)

    function = torch.compile(by)

    def by_compiled():
        with torch.inference_mode():
            return function(functional.group_norm, images, *affine)

    ours, compiled, theirs = map(common.median_ms, (module.run, by_compiled, by_torch))
    floor = (data.nbytes + found.nbytes) / bandwidth * 1e3
    cells = [name, ours, compiled, theirs, f"{theirs / ours:.2f}", f"{compiled / ours:.2f}", floor]
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
