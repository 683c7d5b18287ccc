"""The Mask R-CNN that the detection benchmarks time and evaluate, and how they time it.

It is torchvision's `maskrcnn_resnet50_fpn`, trained on drawn shapes, so that the effect of half precision can
be measured: see `tests/models/shapes.py`.
"""

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
from tests.benchmarks._common import median_wall_ms
from tests.models.shapes import drawn, trained_on_shapes
from tests.models.zoo import detection_model
from tvm_passes import detection_pipeline, runtime

from tvm import relay

SIZE = 800, 1333
CROWD = 250  # shapes in an image
REPEATS_OF_A_BATCH = 10

SPEED = f"""## Time of a call

Images of {SIZE[0]}x{SIZE[1]} with 100 detections each. Milliseconds from the call to the end of the work, by
the host's clock: the median of {common.REPEATS} calls, or of {REPEATS_OF_A_BATCH} with a batch. Ours is
float16 with static shapes, replayed as a CUDA graph; its outputs are cut to the valid detections, for which
the host reads their number. torchvision gets the same image on the GPU; raw masks are its masks before it
pastes them."""


def add_options(parser, training):
    parser.add_argument("--training", type=float, default=training, help="seconds to train for; %(default)s")
    parser.add_argument("--weights", type=Path, help="where the trained weights are kept, or are already")


def begin(options):
    """A printer of progress, the trained model, and the target of this GPU."""
    common.require_gpu()
    note = Notes()
    model = trained(options.training, options.weights)
    note("trained")
    return note, model, common.tensor_core_target("cudnn-frontend")


def environment(target):
    """The facts about a measurement, as a Markdown list."""
    facts = [f"- torchvision: {torchvision.__version__}", f"- Target: {target}"]
    return "\n".join([common.environment(common.copy_bandwidth(), times=None), *facts])


def trained(seconds, path):
    """The trained model, with the weights in the file if it exists."""
    if path is None or not path.exists():
        model = trained_on_shapes(seconds=seconds, min_size=SIZE[0], max_size=SIZE[1])
        if path is not None:
            torch.save(model.state_dict(), path)
        return model
    model = detection_model("maskrcnn_resnet50_fpn", min_size=SIZE[0], max_size=SIZE[1])
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.cuda()


class Notes:
    """Prints progress with the time since the start."""

    def __init__(self):
        self._start = time.monotonic()

    def __call__(self, what):
        print(f"[{time.monotonic() - self._start:.0f} s] {what}", flush=True)


def prepared(model, batch, target):
    """The model after the passes, for a batch of images."""
    example = [torch.zeros(3, *SIZE) for _ in range(batch)]
    mod, params = frontends.from_pytorch(model.cpu(), example)
    model.cuda()
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return detection_pipeline(target, outputs="padded")(mod)


def built(mod, target):
    return runtime.compile(mod, target, cut=True, copy_outputs=False)


def crowd(seed=7):
    return drawn(*SIZE, CROWD, seed, "cuda", largest=0.12)[0]


def speed(model, ours, batch):
    """Rows of a table: the time of each of our models, and of its peers."""
    images = [crowd(seed=7 + index) for index in range(batch)]
    repeats = common.REPEATS if batch == 1 else REPEATS_OF_A_BATCH
    peers = {
        "eager, float32": lambda: model(images),
        "eager, autocast": autocast(lambda: model(images)),
    }
    rows = []
    for name, mine in ours.items():
        with torch.no_grad(), unpasted() if name == "raw masks" else contextlib.nullcontext():
            times = {peer: median_wall_ms(run, repeats) for peer, run in peers.items()}
            model.to(memory_format=torch.channels_last)
            times["autocast, channels_last"] = median_wall_ms(peers["eager, autocast"], repeats)
            model.to(memory_format=torch.contiguous_format)
        rows.append([name, batch, median_wall_ms(partial(mine, *images), repeats), times])
        print(rows[-1], flush=True)
    return rows


def autocast(run, device="cuda"):
    """The call in float16 on a GPU, in bfloat16 on a CPU, where torch thinks that it may be."""

    def inside(*args):
        with torch.autocast(device):
            return run(*args)

    return inside


def unpasted():
    """Make torchvision leave out the pasting of masks."""
    return mock.patch.object(transform, "paste_masks_in_image", lambda masks, *_: masks)


def speed_as_table(rows):
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
