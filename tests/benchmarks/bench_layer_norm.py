"""Time normalizations over the last axis: `python -m tests.benchmarks.bench_layer_norm`.

The peer is torch's `layer_norm`, alone and under `torch.compile`, in float16 with gamma and beta. Our results
are compared with torch's in float32 before anything is timed.
"""

import argparse

import torch
from torch.nn import functional

from tests.benchmarks import _common as common
from topi_ext import layer_norm

from tvm import relay

SHAPES = [(1, 512, 512, 64), (1, 270, 480, 64), (8, 56, 56, 96), (1, 197, 768)]
TOLERANCE = 2e-2  # of numbers up to 10, rounded to float16


def main(arguments=None):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["float16", "ours", "torch.compile", "torch", "torch / ours", "torch.compile / ours", "floor"]
    rows = [row(shape, bandwidth) for shape in SHAPES]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("layer_norm", "Normalization over the last axis", "\n".join(text))


NOTES = """Data are float16; gamma and beta are float32 for ours, and float16 for torch. floor: the time to
read the data and write the result once at the bandwidth of a copy; the L2 cache can be faster than that."""


def row(shape, bandwidth):
    torch.manual_seed(0)
    channels = shape[-1]
    data = torch.randn(shape, device="cuda", dtype=torch.float16)
    gamma, beta = (torch.rand(channels, device="cuda") for _ in range(2))
    variables = [
        relay.var(name, shape=each.shape, dtype=str(each.dtype).split(".")[-1])
        for name, each in (("data", data), ("gamma", gamma), ("beta", beta))
    ]
    module = common.compile_for_gpu(relay.Function(variables, layer_norm(*variables)), data, gamma, beta)
    module.run()
    (found,) = common.outputs_of(module)
    expected = functional.layer_norm(data.float(), (channels,), gamma, beta)
    name, difference = "x".join(map(str, shape)), (found.float() - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"{name}: the result differs from torch's by {difference}: nothing was timed")
    affine = gamma.half(), beta.half()

    def by_torch():
        with torch.inference_mode():
            return functional.layer_norm(data, (channels,), *affine)

    function = torch.compile(functional.layer_norm)

    def by_compiled():
        with torch.inference_mode():
            return function(data, (channels,), *affine)

    ours, compiled, theirs = map(common.median_ms, (module.run, by_compiled, by_torch))
    floor = (data.nbytes + found.nbytes) / bandwidth * 1e3
    cells = [name, ours, compiled, theirs, f"{theirs / ours:.2f}", f"{compiled / ours:.2f}", floor]
    print(cells, flush=True)
    return cells


if __name__ == "__main__":
    main()
