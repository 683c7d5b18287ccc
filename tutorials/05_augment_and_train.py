"""Train a small network to segment shapes in drawn images, each warped at random before every step.

    python -m tutorials.05_augment_and_train

Run it in the root of a clone, after `pip install -e ".[tutorials]"`. Each batch is rotated, scaled, sheared,
shifted and flipped together with its masks: as a whole with topi_ext.torch, on the GPU if there is one and
otherwise on the CPU; and again image by image with OpenCV, which must give bit-identical results. The script
prints how many images per second each of them warps, and draws some into augmented.png. It takes about a
minute on two cores.
"""

import argparse
import time
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import nn

from topi_ext.torch import RandomAffine

try:
    import cv2
except ModuleNotFoundError:
    raise SystemExit('OpenCV is missing: run `pip install -e ".[tutorials]"`') from None

SIDE, BATCH = 128, 16
UNKNOWN, GREY = 255, 114  # the label, and the colour, of what lies outside an image
MAX_LEARNING_RATE = 0.01
MAPS = {"degrees": 40, "translate": (0.1, 0.1), "scale": (0.6, 1.5), "shear": 10, "flip": 0.5}
HINT = "pip install 'opencv-python-headless<5'"
console = Console()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", default="augmented.png", help="the file into which some images are drawn")
    parser.add_argument(
        "--quick", action="store_true", help="few images, one epoch: only checks that it runs"
    )
    args = parser.parse_args(arguments)
    if not cv2.__version__.startswith("4."):
        parser.exit(1, f"OpenCV {cv2.__version__} does not warp as OpenCV 4 does: {HINT}\n")
    if args.quick:
        args.images, args.epochs = 64, 1

    data, unseen = shapes(args.images, seed=0), shapes(128, seed=1)
    draw_sheet(data, args.output)
    console.print(f"Some warped images are drawn in {args.output}.")
    network, seconds = train(data, args)
    table = Table("on " + args.device, "images per second")
    for what, duration in seconds.items():
        table.add_row(what, f"{args.images * args.epochs / duration:,.0f}")
    console.print(table, f"On unseen images, its IoU is {iou(network, unseen, args.device):.2f}.")


# --- moving a batch


def by_topi_ext(random, images, masks, matrices, device):
    return random.warp(images.to(device), matrices, masks=masks.to(device))


def by_opencv(_random, images, masks, matrices, device):
    size = (SIDE, SIDE)
    moved = [
        (
            cv2.warpAffine(image, matrix, size, borderValue=(GREY, GREY, GREY)),
            cv2.warpAffine(mask, matrix, size, flags=cv2.INTER_NEAREST, borderValue=UNKNOWN),
        )
        for image, mask, matrix in zip(images.numpy(), masks.numpy(), matrices.numpy())
    ]
    return tuple(torch.from_numpy(np.stack(parts)).to(device) for parts in zip(*moved))


MOVES = {"moved by topi_ext": by_topi_ext, "moved by OpenCV": by_opencv}

# --- training


def train(data, args):
    """The trained network, and the seconds spent on each step."""
    torch.manual_seed(0)
    images, masks, _ = data
    random = RandomAffine(**MAPS, layout="NHWC", mode="cv2_fixed", border_value=GREY, mask_value=UNKNOWN)
    network = Network().to(args.device)
    optimizer = torch.optim.AdamW(network.parameters())
    batches = [batch for _ in range(args.epochs) for batch in torch.randperm(len(images)).split(BATCH)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LEARNING_RATE, len(batches))
    by_topi_ext(
        random, images[:1], masks[:1], random.draw(1, (SIDE, SIDE), (SIDE, SIDE)), args.device
    )  # compiles
    clock = Clock(args.device)
    loss_so_far = TextColumn("loss {task.fields[loss]}")
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), loss_so_far) as bar:
        task = bar.add_task("Images", total=args.images * args.epochs, loss="-")
        for batch in batches:
            matrices = random.draw(len(batch), (SIDE, SIDE), (SIDE, SIDE))
            given = random, images[batch], masks[batch], matrices, args.device
            results = []
            for name, move in MOVES.items():
                with clock.measure(name):
                    results.append(move(*given))
            (moved, labels), by_other = results
            if not (torch.equal(moved, by_other[0]) and torch.equal(labels, by_other[1])):
                raise ValueError(f"OpenCV {cv2.__version__} warps an image differently from topi_ext")
            with clock.measure("trained on"):
                loss = F.cross_entropy(network(moved), labels.long(), ignore_index=UNKNOWN)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            bar.update(task, advance=len(batch), loss=f"{loss.item():.3f}")
    return network, clock.seconds


class Clock:
    """Adds up the time that each step takes, including work on the device."""

    def __init__(self, device):
        self.seconds, self._device = defaultdict(float), device

    @contextmanager
    def measure(self, name):
        start = self._now()
        yield
        self.seconds[name] += self._now() - start

    def _now(self):
        if self._device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()


class Network(nn.Module):
    """Processes context at a quarter of the resolution, and details at half of it."""

    def __init__(self):
        super().__init__()
        self.fine = convolution(3, 16, stride=2)
        around = [convolution(32, 32, dilation=dilation) for dilation in (1, 2, 4)]
        self.coarse = nn.Sequential(convolution(16, 32, stride=2), *around)
        self.both = convolution(16 + 32, 16)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, images):
        fine = self.fine(images.permute(0, 3, 1, 2).float() / 255 - 0.5)
        both = self.both(torch.cat([fine, F.interpolate(self.coarse(fine), scale_factor=2)], dim=1))
        return F.interpolate(self.last(both), scale_factor=2, mode="bilinear")


def convolution(inputs, outputs, stride=1, dilation=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


@torch.no_grad()
def iou(network, unseen, device):
    """Intersection over union of the predicted and the true masks."""
    images, masks, _ = unseen
    network.eval()
    found = torch.cat([network(batch.to(device)).argmax(1).cpu() for batch in images.split(BATCH)])
    return ((found & masks).sum() / (found | masks).sum()).item()


# --- drawn shapes


def shapes(count, seed):
    """Images (count, SIDE, SIDE, 3), masks (count, SIDE, SIDE), and the boxes of the shapes in each."""
    rng = np.random.default_rng(seed)
    drawn = [draw(rng) for _ in range(count)]
    images, masks, boxes = zip(*drawn)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks)), boxes


def draw(rng):
    ys, xs = np.mgrid[:SIDE, :SIDE] + 0.5
    slope = rng.uniform(-0.4, 0.4, (2, 3))
    ground = rng.uniform(60, 180, 3) + (ys[..., None] - 64) * slope[0] + (xs[..., None] - 64) * slope[1]
    mask, boxes = np.zeros((SIDE, SIDE), "uint8"), []
    for _ in range(rng.integers(1, 4)):
        kind, radius, angle = rng.integers(3), rng.uniform(12, 26), rng.uniform(0, 2 * np.pi)
        x, y = rng.uniform(radius, SIDE - radius, 2)
        u = ((xs - x) * np.cos(angle) + (ys - y) * np.sin(angle)) / radius
        v = ((ys - y) * np.cos(angle) - (xs - x) * np.sin(angle)) / radius
        inside = (
            np.hypot(u, v) < 0.8,  # a disc, a square, a triangle
            np.maximum(abs(u), abs(v)) < 0.7,
            np.maximum(v, abs(u) * 3**0.5 / 2 - v / 2) < 0.5,
        )[kind]
        if not inside.any() or mask[inside].any():
            continue
        colour = rng.uniform(0, 255, 3)
        ground[inside] = colour + (ground[inside] - ground[inside].mean(0)) * 0.5
        mask[inside] = 1
        down, across = np.nonzero(inside)
        boxes.append([across.min(), down.min(), across.max() + 1, down.max() + 1])
    image = (ground + rng.normal(0, 8, ground.shape)).clip(0, 255).astype("uint8")
    return image, mask, torch.tensor(np.array(boxes, "float32").reshape(-1, 4))


def draw_sheet(data, path, rows=4, columns=7):
    """Draw a sheet of images: originals on the left, then warped ones, all with their masks and boxes."""
    images, masks, boxes = (part[:rows] for part in data)
    random = RandomAffine(
        **MAPS, layout="NHWC", border_value=GREY, generator=torch.Generator().manual_seed(5)
    )
    pages = [(images, boxes, masks), *(random(images, boxes, masks) for _ in range(columns - 1))]
    figure = Figure(figsize=(columns * 1.5, rows * 1.5 + 0.3), layout="tight")
    axes = figure.subplots(rows, columns)
    for column, page in zip(axes.T, pages):
        for axis, image, own_boxes, mask in zip(column, *page):
            axis.imshow(image, extent=(0, SIDE, SIDE, 0))
            centres = np.arange(SIDE) + 0.5
            axis.contour(centres, centres, mask == 1, levels=[0.5], colors="white", linewidths=1.2)
            for x1, y1, x2, y2 in own_boxes.tolist():
                axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ls=":", ec="black", lw=1))
            axis.set(xticks=[], yticks=[], xlim=(0, SIDE), ylim=(SIDE, 0))
    axes[0, 0].set_title("as drawn", fontsize=9)
    axes[0, (columns + 1) // 2].set_title("moved at random, with masks and boxes", fontsize=9)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
