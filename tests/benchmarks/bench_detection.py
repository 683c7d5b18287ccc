"""Time Mask R-CNN beside torchvision: `python -m tests.benchmarks.bench_detection`.

The picture is one of so many shapes that 100 detections are found, all that the model returns. What it finds
in float16 is told by `bench_detection_accuracy`.
"""

import argparse
import contextlib
import time
from functools import partial
from unittest import mock

import torch
from torchvision.models.detection import transform

from tests.benchmarks import _common as common
from tests.benchmarks._detector import SIZE, add_options, begin, built, environment, prepared
from tests.benchmarks._stages import STAGES, stage_times
from tests.models.shapes import drawn
from tests.profiled import profiled
from tvm_passes import ReturnRawMasks

import tvm

CROWD = 250  # shapes in a picture


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, training=120)
    parser.add_argument("--batch", type=int, default=8, help="pictures of a batch; 1 leaves it out")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    note, model, target = begin(options)
    mod = prepared(model, 1, target)
    pasting = built(mod, target)
    note("compiled")
    text = [environment(target), ""]
    (name,) = pasting.inputs
    stages = stage_times(pasting.lib, tvm.cuda(0), **{name: tvm.nd.array(crowd().cpu().numpy())})
    ours = {"pasted masks": pasting, "raw masks": built(ReturnRawMasks()(mod), target)}
    note("raw masks compiled")
    rows = speed(model, ours, 1)
    more = ["", waits(pasting), "", STAGE, "", stages_as_table(stages)]
    if options.batch > 1:
        several = built(prepared(model, options.batch, target), target)
        note("batch compiled")
        rows += speed(model, {"pasted masks": several}, options.batch)
    if not options.without_compile:
        common.publish("detection", "Mask R-CNN", "\n".join([*text, SPEED, "", rows_as_table(rows), *more]))
        rows[0][3]["torch.compile, autocast"] = by_torch_compile(model)
    common.publish("detection", "Mask R-CNN", "\n".join([*text, SPEED, "", rows_as_table(rows), *more]))


SPEED = f"""## Time of a call

Pictures of {SIZE[0]}x{SIZE[1]}, 100 detections in each. Milliseconds from the call to the end of the work, as
the host's clock has it: median of {common.REPEATS}. Ours is float16 on fixed shapes, replayed as a CUDA
graph; its outputs are cut to the detections, for which the host reads their number. torchvision is given the
same picture on the GPU; raw masks are what it has before it pastes them."""

STAGE = """## Time of each stage

On the GPU alone, in milliseconds, and kernels."""


def crowd(seed=7):
    return drawn(*SIZE, CROWD, seed, "cuda", largest=0.12)[0]


def speed(model, ours, batch):
    """Rows of a table: the time of each of ours, and of its peers."""
    images = [crowd(seed=7 + index) for index in range(batch)]
    repeats = max(10, common.REPEATS // batch)
    peers = {
        "eager, float32": lambda: model(images),
        "eager, autocast": autocast(lambda: model(images)),
    }
    rows = []
    for name, mine in ours.items():
        with torch.no_grad(), unpasted() if name == "raw masks" else contextlib.nullcontext():
            times = {peer: wall_ms(run, repeats) for peer, run in peers.items()}
            model.to(memory_format=torch.channels_last)
            times["autocast, channels_last"] = wall_ms(peers["eager, autocast"], repeats)
            model.to(memory_format=torch.contiguous_format)
        rows.append([name, batch, wall_ms(partial(mine, *images), repeats), times])
        print(rows[-1], flush=True)
    return rows


def by_torch_compile(model):
    optimised, image = torch.compile(model), crowd()
    with torch.no_grad():
        return wall_ms(autocast(lambda: optimised([image])), common.REPEATS)


def waits(ours):
    """How often the host waits in a call, as a sentence."""
    image = crowd()
    calls = profiled(lambda: ours(image))
    copies = sum("Memcpy DtoH" in name for name in calls)
    waited = sum(name.startswith("cu") and "Synchronize" in name for name in calls)
    return f"Copies from the device to the host in a call of ours: {copies}; waits for the device: {waited}."


def autocast(run):
    def inside():
        with torch.autocast("cuda"):
            return run()

    return inside


def unpasted():
    """torchvision without pasting."""
    return mock.patch.object(transform, "paste_masks_in_image", lambda masks, *_: masks)


def wall_ms(run, repeats):
    for _ in range(5):
        run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


def rows_as_table(rows):
    peers = list(dict.fromkeys(peer for row in rows for peer in row[3]))
    header = ["", "batch", "ours", *peers, "best torchvision / ours", "ours, images a second"]
    cells = [
        [
            name,
            f"{batch}",
            own,
            *(times.get(peer, "") for peer in peers),
            f"{min(times.values()) / own:.1f}",
            f"{batch / own * 1e3:.0f}",
        ]
        for name, batch, own, times in rows
    ]
    return common.markdown_table(header, cells)


def stages_as_table(stages):
    rows = [[stage, stages[stage][0], f"{stages[stage][1]}"] for stage in STAGES]
    total = [sum(column) for column in zip(*stages.values())]
    return common.markdown_table(["", "ms", "kernels"], [*rows, ["all", total[0], f"{total[1]}"]])


if __name__ == "__main__":
    main()
