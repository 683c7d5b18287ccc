"""Time a network of one image versus torch and `torch.compile` on a GPU: what several benchmarks share."""

import json
import sys
import time
from copy import deepcopy
from functools import partial

import torch

from tests.benchmarks import _common as common
from tests.benchmarks._detector import median_wall_ms
from tests.benchmarks.bench_zoo import in_time

TEXT = f"""Milliseconds from the call to the end of the work, by the host's clock: the median of
{common.REPEATS} calls on an image that is on the device. Ours is float16 on a GPU, replayed as a CUDA graph;
torch is float16 in channels_last, or autocast where a network does not run so, and `torch.compile` has the
mode reduce-overhead, which is a CUDA graph too. Off: the largest difference from torch in float32, in parts
of the largest element."""


def measure(prepare, network, image, to, deadline):
    """Prepare a network, say so, wait for a line on the standard input, and time it.

    `prepare()` is ours, of an image of the type of `image`; the network is torch's, and changed.
    """
    start = time.monotonic()
    ours = prepare()
    seconds = time.monotonic() - start
    print(f"compiled in {seconds:.0f} s", flush=True)
    network = network.float().cuda().to(memory_format=torch.channels_last)
    given, pixels = image.cuda(), image.half().cuda().to(memory_format=torch.channels_last)
    with torch.no_grad():
        with common.float32_convolutions():
            wanted = network(image.float().cuda())
        in_half = half_of(network, pixels)
        in_half(pixels)  # what a first call leaves in a network, as SwinIR its mean, is of no CUDA graph
        calls = {"eager": partial(in_half, pixels)}
        by_compiler = in_time(compiled(in_half, pixels), deadline - time.monotonic())
        if by_compiler is not None:
            calls["torch.compile"] = by_compiler
        off = {"ours": off_by(ours(given), wanted), "torch": off_by(calls["eager"](), wanted)}
        to.with_suffix(".ready").touch()
        sys.stdin.readline()
        times = {peer: median_wall_ms(run, common.REPEATS) for peer, run in calls.items()}
        own = median_wall_ms(lambda: ours(given), common.REPEATS)
    to.write_text(json.dumps({"ours": own, "times": times, "seconds": seconds, "off": off}))


def half_of(network, pixels):
    """The network in float16; under autocast where torch does not take what it computes in float32."""
    half = deepcopy(network).half()
    try:
        half(pixels)
    except RuntimeError:
        return torch.autocast("cuda", torch.float16)(network)
    return half


def compiled(network, pixels):
    """A call of what torch compiles; it may keep a tensor of its last call, which is told to be over."""
    made = torch.compile(network, mode="reduce-overhead")

    def call():
        torch.compiler.cudagraph_mark_step_begin()
        return made(pixels)

    return call


def off_by(found, wanted):
    """The largest difference, in parts of the largest element."""
    found = next(iter(found.values())) if isinstance(found, dict) else found
    found = torch.as_tensor(found).to(wanted.device).float()
    return float((found - wanted).abs().max() / wanted.abs().max())


def table(rows):
    peers = list(dict.fromkeys(peer for row in rows for peer in row["times"]))
    header = ["", "ours", *peers, "best torch / ours", "ours off by", "torch off by", "ready, s"]
    cells = [
        [
            row["name"],
            f"{row['ours']:.2f}",
            *(f"{row['times'][peer]:.2f}" if peer in row["times"] else "-" for peer in peers),
            f"{min(row['times'].values()) / row['ours']:.2f}",
            *(f"{row['off'][one]:.1e}" for one in ("ours", "torch")),
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    return common.markdown_table(header, cells)
