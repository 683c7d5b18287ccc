"""The Mask R-CNN that the benchmarks of detection time and judge.

It is torchvision's `maskrcnn_resnet50_fpn`, trained on drawn shapes, so that what half precision changes can
be told: see `tests/models/shapes.py`.
"""

import time
from pathlib import Path

import torch
import torchvision

import frontends
from tests.benchmarks import _common as common
from tests.models.shapes import trained_on_shapes
from tests.models.zoo import detection_model
from tvm_passes import detection_pipeline, runtime

from tvm import relay

SIZE = 800, 1333


def add_options(parser, training):
    parser.add_argument("--training", type=float, default=training, help="seconds to train for; %(default)s")
    parser.add_argument("--weights", type=Path, help="where the trained weights are kept, or are already")


def begin(options):
    """What tells how far it is, the trained model, and the target of this GPU."""
    common.require_gpu()
    note = Notes()
    model = trained(options.training, options.weights)
    note("trained")
    return note, model, common.tensor_core_target("cudnn-frontend")


def environment(target):
    """Where and with what it was measured, as a Markdown list."""
    facts = [f"- torchvision: {torchvision.__version__}", f"- Target: {target}"]
    return "\n".join([common.environment(common.copy_bandwidth()), *facts])


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


class Notes:
    """Progress with the time since the start."""

    def __init__(self):
        self._start = time.monotonic()

    def __call__(self, what):
        print(f"[{time.monotonic() - self._start:.0f} s] {what}", flush=True)


def prepared(model, batch, target):
    """The model after the passes, for a batch of pictures."""
    example = [torch.zeros(3, *SIZE) for _ in range(batch)]
    mod, params = frontends.from_pytorch(model.cpu(), example)
    model.cuda()
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return detection_pipeline(target, outputs="padded")(mod)


def built(mod, target):
    return runtime.compile(mod, target, cut=True, copy_outputs=False)
