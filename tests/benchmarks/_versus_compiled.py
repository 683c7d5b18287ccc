"""Time a network of one image versus torch and `torch.compile` on a GPU: what several benchmarks share."""

import json
import sys
import time
from functools import partial

import torch

from tests.benchmarks import _common as common
from tests.benchmarks._detector import median_wall_ms
from tests.benchmarks.bench_zoo import in_time

TEXT = f"""Milliseconds from the call to the end of the work, by the host's clock: the median of
{common.REPEATS} calls on an image that is on the device. Ours is float16 on a GPU, replayed as a CUDA graph;
torch is float16 in channels_last, and `torch.compile` has the mode reduce-overhead, which is a CUDA graph
too. Off: the largest difference from torch in float32, in parts of the largest element."""


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
        network = network.half()
        calls = {"eager": partial(network, pixels)}
        compiler = partial(torch.compile(network, mode="reduce-overhead"), pixels)
        by_compiler = in_time(compiler, deadline - time.monotonic())
        if by_compiler is not None:
            calls["torch.compile"] = by_compiler
        off = {"ours": off_by(ours(given), wanted), "torch": off_by(calls["eager"](), wanted)}
        to.with_suffix(".ready").touch()
        sys.stdin.readline()
        times = {peer: median_wall_ms(run, common.REPEATS) for peer, run in calls.items()}
        own = median_wall_ms(lambda: ours(given), common.REPEATS)
    to.write_text(json.dumps({"ours": own, "times": times, "seconds": seconds, "off": off}))


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
