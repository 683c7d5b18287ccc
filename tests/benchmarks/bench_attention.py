"""Time attention: `python -m tests.benchmarks.bench_attention`.

The peer is torch's `scaled_dot_product_attention`, alone and under `torch.compile`, in float16. Our results
are compared with torch's in float32 before anything is timed.
"""

import argparse
from importlib.util import find_spec
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.benchmarks import _common as common
from topi_ext import attention
from topi_ext.attention import cudnn
from topi_ext.cudnn.plans import timed_by
from topi_ext.cudnn.session import LIBRARY

from tvm import relay

CASES = {  # batch, heads, queries, keys, depth, width
    "ViT-B, 224 x 224": (1, 12, 197, 197, 64, 64),
    "YOLO11n, 640 x 640": (1, 2, 400, 400, 32, 64),
    "YOLO11s, 640 x 640": (1, 4, 400, 400, 32, 64),
    "RT-DETR's encoder, 640 x 640": (1, 8, 400, 400, 32, 32),
    "RT-DETR's decoder": (1, 8, 300, 300, 32, 32),
    "YOLOS-S, 512 x 864": (1, 6, 1829, 1829, 64, 64),
    "ViT-B, 8 images": (8, 12, 197, 197, 64, 64),
    "Swin-T, windows of 7 x 7": (64, 12, 49, 49, 32, 32),
    "SwinIR, windows of 8 x 8": (256, 6, 64, 64, 32, 32),
    "HAT, windows of 16 x 16": (64, 6, 256, 256, 32, 32),
    "HAT, windows of 16 x 16, masked": (64, 6, 256, 256, 32, 32),
    "DETR's encoder, 800 x 1216": (1, 8, 950, 950, 32, 32),
    "DETR's decoder": (1, 8, 100, 950, 32, 32),
    "ViT-L, 336 x 336": (1, 16, 577, 577, 64, 64),
    "577 tokens of 80": (1, 16, 577, 577, 80, 80),
    "577 tokens of 128": (1, 8, 577, 577, 128, 128),
    "2,048 tokens": (1, 12, 2048, 2048, 64, 64),
    "SAM's ViT-B, 1024 x 1024": (1, 12, 4096, 4096, 64, 64),
}
TOLERANCE = 5e-3  # of means of numbers up to 5, rounded to float16


def main(arguments=None):
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    common.require_gpu()
    bandwidth = common.copy_bandwidth()
    header = ["float16", "ours", "cuDNN", "torch.compile", "torch", "torch / best", "floor"]
    rows = [row(name, shape, bandwidth) for name, shape in CASES.items()]
    text = [common.environment(bandwidth), "", common.markdown_table(header, rows), "", NOTES]
    common.publish("attention", "Attention", "\n".join(text))


NOTES = """ours: this project's kernel. cuDNN: the operator for a target with -libs=cudnn-frontend, by its
graph API. torch / best: versus the faster of these two. floor: the time to read queries, keys and values and
write the result once at the bandwidth of a copy; the L2 cache can be faster than that. With cuDNN in the
target, it computes what has no mask, and many keys."""


def row(name, shape, bandwidth):
    torch.manual_seed(0)
    batch, heads, queries, keys, depth, width = shape
    lengths = (queries, depth), (keys, depth), (keys, width)
    tensors = [torch.randn(batch, heads, *each, device="cuda", dtype=torch.float16) for each in lengths]
    if name.endswith("masked"):
        tensors.append(torch.randn(1, heads, queries, keys, device="cuda", dtype=torch.float16))
    expected = scaled_dot_product_attention(*(tensor.float() for tensor in tensors))
    kinds = {"ours": "", **({"cuDNN": LIBRARY} if find_spec("cudnn") and len(tensors) == 3 else {})}
    times = {kind: time_of(tensors, expected, f"{name}, {kind}", given) for kind, given in kinds.items()}

    def by_torch():
        with torch.inference_mode():
            return scaled_dot_product_attention(*tensors)

    function = torch.compile(scaled_dot_product_attention)

    def by_compiled():
        with torch.inference_mode():
            return function(*tensors)

    compiled, theirs = map(common.median_ms, (by_compiled, by_torch))
    floor = (sum(tensor.nbytes for tensor in tensors) + expected.nbytes / 2) / bandwidth * 1e3
    best = min(times.values())
    cells = [name, times["ours"], times.get("cuDNN", "-"), compiled, theirs, f"{theirs / best:.2f}", floor]
    print(cells, flush=True)
    return cells


def time_of(tensors, expected, name, libraries):
    variables = [relay.var(name, shape=each.shape, dtype="float16") for name, each in zip("qkvm", tensors)]
    result = attention(*variables, scale=tensors[0].shape[-1] ** -0.5)
    target = common.tensor_core_target(libraries)
    with mock.patch.object(cudnn, "LONG", 1):  # whatever is faster
        module = common.compile_for_gpu(relay.Function(variables, result), *tensors, target=target)
    with timed_by(common.median_ms):  # the fastest of cuDNN's plans
        module.run()
    (found,) = common.outputs_of(module)
    difference = (found.float() - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"{name}: the result differs from torch's by {difference}: nothing was timed")
    return common.median_ms(module.run)


if __name__ == "__main__":
    main()
