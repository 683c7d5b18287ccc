"""Time Mask R-CNN beside torchvision: `python -m tests.benchmarks.bench_detection`.

The model is torchvision's `maskrcnn_resnet50_fpn`, trained on drawn shapes, so that what half
precision changes can be told: see `tests/models/shapes.py`. The picture is one of so many shapes that 100
detections are found, all that the model returns.
"""

import argparse
import contextlib
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torchvision
from torchvision.models.detection import transform

import frontends
from tests.benchmarks import _common as common
from tests.benchmarks._stages import STAGES, stage_times
from tests.models.detectors import share_matched
from tests.models.shapes import drawn, trained_on_shapes
from tests.models.zoo import detection_model
from tests.profiled import profiled
from tvm_passes import ReturnRawMasks, detection_pipeline, runtime

import tvm
from tvm import relay

SIZE = 800, 1333
CROWD = 250  # shapes in a picture for the times
COUNTS = 6, 12, 40  # shapes in a picture for what is found; of 40 the model finds more than it returns
PICTURES = 16  # with each


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--training", type=float, default=200, help="seconds to train for")
    parser.add_argument("--weights", type=Path, help="where the trained weights are kept, or are already")
    parser.add_argument("--batch", type=int, default=8, help="pictures of a batch; 1 leaves it out")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    common.require_gpu()
    note = Notes()
    model = trained(options.training, options.weights)
    note("trained")
    target = common.tensor_core_target("cudnn-frontend")
    mod = prepared(model, 1, target)
    pasting = built(mod, target)
    note("compiled")
    text = [common.environment(common.copy_bandwidth()), f"- torchvision: {torchvision.__version__}"]
    text += [f"- Target: {target}", "", accuracy(model, pasting), ""]
    note("compared")
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


def trained(seconds, path):
    """The model, with the weights in the file if it is there."""
    if path is None or not path.exists():
        model = trained_on_shapes(seconds=seconds, min_size=SIZE[0], max_size=SIZE[1])
        if path is not None:
            torch.save(model.state_dict(), path)
        return model
    model = detection_model("maskrcnn_resnet50_fpn", min_size=SIZE[0], max_size=SIZE[1])
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.cuda()


SPEED = f"""## Time of a call

Pictures of {SIZE[0]}x{SIZE[1]}, 100 detections in each. Milliseconds from the call to the end of the work, as
the host's clock has it: median of {common.REPEATS}. Ours is float16 on fixed shapes, replayed as a CUDA
graph; its outputs are cut to the detections, for which the host reads their number. torchvision is given the
same picture on the GPU; raw masks are what it has before it pastes them."""

STAGE = """## Time of each stage

On the GPU alone, in milliseconds, and kernels."""


class Notes:
    """Progress with the time since the start."""

    def __init__(self):
        self._start = time.monotonic()

    def __call__(self, what):
        print(f"[{time.monotonic() - self._start:.0f} s] {what}", flush=True)


def crowd(seed=7):
    return drawn(*SIZE, CROWD, seed, "cuda", largest=0.12)[0]


def prepared(model, batch, target):
    """The model after the passes, for a batch of pictures."""
    example = [torch.zeros(3, *SIZE) for _ in range(batch)]
    mod, params = frontends.from_pytorch(model.cpu(), example)
    model.cuda()
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return detection_pipeline(target, outputs="padded")(mod)


def built(mod, target):
    return runtime.compile(mod, target, cut=True, copy_outputs=False)


def accuracy(model, ours):
    """How much of what torchvision finds in float32 is found, as Markdown."""
    rows = []
    for count in COUNTS:
        pictures = [compared(model, ours, count, seed) for seed in range(PICTURES)]
        seen = [each[0] for each in pictures]
        shares = [sum(each[at] * each[0] for each in pictures) / sum(seen) for at in (1, 2)]
        least = min(each[1] for each in pictures)
        rows.append([f"{count}", f"{PICTURES}", f"{min(seen)} to {max(seen)}", *map("{:.4f}".format, shares)])
        rows[-1].append(f"{least:.4f}")
        print(rows[-1], flush=True)
    header = ["shapes", "pictures", "found in each", "ours", "torch, autocast", "ours, least of a picture"]
    return "\n".join(["## What is found", "", ACCURACY, "", common.markdown_table(header, rows)])


ACCURACY = """Of what torchvision eager finds in float32 with a score above 0.05, the share that is found in
float16: of the same class, IoU at least 0.9, the score within 0.02. Its float32 is exact here, without the
TF32 that torch lets cuDNN use elsewhere. The model returns 100 detections at most: where it finds more, which
of them is the hundredth is a matter of a score's last digits, and counts."""


def compared(model, ours, count, seed):
    """How many torchvision finds in a picture, and the shares of them that ours and autocast find."""
    image, _ = drawn(*SIZE, count, 50 + seed, "cuda")
    with torch.no_grad():
        with common.float32_convolutions():
            exact = arrays(model([image])[0])
        with torch.autocast("cuda"):
            half = arrays(model([image])[0])
    seen = int((exact["scores"] > 0.05).sum())
    return seen, *(share_matched(each, exact) for each in (arrays(ours(image)), half))


def arrays(found):
    return {name: value.float().cpu().numpy() for name, value in found.items() if name != "masks"}


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
