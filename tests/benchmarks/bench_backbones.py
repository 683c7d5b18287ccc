"""Time torchvision's backbones versus torch: `python -m tests.benchmarks.bench_backbones`.

Each is prepared from float32, as users bring them, in a process of its own, all at once; then they are timed
one after the other.
"""

import time
import warnings
from functools import partial

import torch
from torch import nn

from tests.benchmarks import _common as common
from tests.benchmarks import _versus_compiled as versus_compiled
from tests.benchmarks.bench_super_resolution import prepared
from tests.benchmarks.bench_zoo import facts_and_rows, parser

MODULE = "tests.benchmarks.bench_backbones"
NETWORKS = {  # and the side of their image
    "resnet50": 640,
    "regnet_y_800mf": 640,
    "densenet121": 640,
    "mobilenet_v3_large": 640,
    "efficientnet_b0": 640,
    "shufflenet_v2_x1_0": 640,
    "convnext_tiny": 800,
    "swin_t": 800,
    "vit_b_16": 224,
    "deeplabv3_resnet50": 520,
}


class Backbone(nn.Module):
    """A network whose results are one tensor, and differ from image to image, though it is not trained."""

    def __init__(self, name, image):
        super().__init__()
        import torchvision

        of_segmentation = {"weights_backbone": None} if name.startswith("deeplab") else {}
        self.network = torchvision.models.get_model(name, weights=None, **of_segmentation)
        for module in self.network.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # the statistics are those of the image
        with torch.no_grad():
            self.network.train()(image)

    def forward(self, image):
        result = self.network(image)
        return result["out"] if isinstance(result, dict) else result


def main():
    args = parser(__doc__, "networks with this in their name").parse_args()
    warnings.simplefilter("ignore")
    if args.one:
        measure(args.one, args.to, time.monotonic() + args.seconds)
        return
    names = [name for name in NETWORKS if not args.only or any(text in name for text in args.only)]
    facts, rows = facts_and_rows(names, args.seconds, MODULE)
    rows = [{**row, "name": f"{row['name']}, {NETWORKS[row['name']]}"} for row in rows]
    text = "\n".join([*facts, "", versus_compiled.TEXT, "", versus_compiled.table(rows)])
    common.publish("backbones", "Backbones of torchvision", text)


def measure(name, to, deadline):
    network, image = network_of(name)
    target = common.tensor_core_target("cudnn-frontend")
    versus_compiled.measure(partial(prepared, network, image, target), network, image, to, deadline)


def network_of(name):
    torch.manual_seed(0)
    # Two, since a norm of one pixel of one image has no statistics.
    images = torch.rand(2, 3, NETWORKS[name], NETWORKS[name])
    return Backbone(name, images).eval(), images[:1]


if __name__ == "__main__":
    main()
