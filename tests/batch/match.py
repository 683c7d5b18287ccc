"""Whether a job finds in photographs what torchvision does.

    python -m tests.batch.match [--images 200] [--model maskrcnn_resnet50_fpn]

A detector of torchvision with seeded weights is compiled for a CPU, and a job runs it on JPEGs of mixed
sizes. In torch, it gets the pixels as Pillow decodes them, fitted into its input, and torchvision pastes its
masks into the photographs. Of what torch finds with a score of 0.05 or more, the job has to find 99% and the
other way round: the same class, a score within 0.02, a box and a mask with an intersection over union of 0.9.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as coco
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import box_iou

import topi_ext
import tvm_passes
from tests.batch import photographs
from tests.batch.tables import rows
from tests.benchmarks._common import cpu_name, markdown_table, publish
from tests.models.detectors import matched
from tests.models.zoo import detection_model
from tests.zoo.outcome import imported
from tvm_passes import batch, runtime
from tvm_passes.batch.letterbox import Placed

SIZE = (256, 320)  # of the network's input
SCORE, SCORES_APART, IOU = 0.05, 0.02, 0.9
ENOUGH = 0.99


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--model", default="maskrcnn_resnet50_fpn", help="of torchvision; %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        photographs.write(folder / "photos", args.images, broken=0)
        files = sorted((folder / "photos").rglob("*.jpg"))
        seen = [fitted(path)[0] for path in files[:4]]
        network = detection_model(args.model, images=seen, min_size=SIZE[0], max_size=SIZE[1])
        compiled(network, seen[0], folder / "model")
        batch.detect(folder / "photos", folder / "detections.parquet", folder / "model")
        found = rows(folder / "detections.parquet")
        pairs = [
            (found[path.relative_to(folder / "photos").as_posix()], in_torch(network, path)) for path in files
        ]
    found = shares(pairs)
    publish("batch_match", "Many images, as torchvision finds it", report(args, pairs, *found), cpu_name())
    if min(found) < ENOUGH:
        sys.exit(f"They have less than {ENOUGH:.0%} in common.")


def compiled(network, image, folder):
    target = topi_ext.cpu_target()
    mod = tvm_passes.detection_pipeline(target, masks="raw")(imported(network, [image]))
    runtime.save(folder, runtime.build_library(mod, target), mod, target)


def fitted(path):
    """A photograph in the input of the network, and where it is there."""
    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
    height, width = pixels.shape[1:]
    scale = min(SIZE[0] / height, SIZE[1] / width)
    resized = int(height * scale), int(width * scale)
    small = torch.nn.functional.interpolate(pixels[None], size=resized, mode="bilinear")[0]
    whole = torch.tensor([0.485, 0.456, 0.406])[:, None, None].expand(3, *SIZE).clone()
    whole[:, : resized[0], : resized[1]] = small
    return whole, Placed((height, width), resized, SIZE)


@torch.no_grad()
def in_torch(network, path):
    """What torch finds, in the pixels of the photograph."""
    image, placed = fitted(path)
    network.transform.postprocess = lambda result, *_sizes: result  # masks stay small
    (found,) = network([image])
    height, width = placed.image
    whole = found["boxes"] * torch.tensor(placed.factor * 2)
    boxes = whole.clamp(min=0).minimum(torch.tensor([width, height] * 2))
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    row = {"boxes": boxes[kept], "scores": found["scores"][kept], "labels": found["labels"][kept]}
    row["size"] = [height, width]
    if "masks" in found:
        pasted = paste_masks_in_image(found["masks"][kept], whole[kept], (height, width))[:, 0] >= 0.5
        row["masks"] = coco.encode(np.asfortranarray(pasted.numpy().transpose(1, 2, 0).astype("uint8")))
    return row


def shares(pairs):
    """How much of what torch finds the job does, and of what the job finds torch."""
    pairs = [(as_torch(row), wanted) for row, wanted in pairs]
    return share(pairs), share([pair[::-1] for pair in pairs])


def share(pairs):
    hits = wanted_ = 0
    for found, wanted in pairs:
        counts = (wanted["scores"] >= SCORE).numpy()
        hits += matched(are_alike(wanted, found)[counts])
        wanted_ += counts.sum()
    return hits / wanted_


def as_torch(row):
    """A row of the table."""
    size = [row["height"], row["width"]]
    found = {"boxes": torch.tensor(row["boxes"]).reshape(-1, 4), "size": size}
    found["scores"], found["labels"] = torch.tensor(row["scores"]), torch.tensor(row["labels"])
    if row["masks"] is not None:
        found["masks"] = [{"size": size, "counts": counts} for counts in row["masks"]]
    return found


def are_alike(wanted, found):
    """Of each pair, (wanted, found)."""
    alike = box_iou(wanted["boxes"], found["boxes"]) >= IOU
    alike &= wanted["labels"][:, None] == found["labels"]
    alike &= (wanted["scores"][:, None] - found["scores"]).abs() <= SCORES_APART
    alike = alike.numpy()
    if "masks" in wanted and alike.size:
        overlaps = coco.iou(found["masks"], wanted["masks"], [False] * len(wanted["masks"])).T
        # Two masks without a pixel are alike.
        empty = np.outer(*(coco.area(each["masks"]) == 0 for each in (wanted, found)))
        alike &= (overlaps >= IOU) | empty
    return alike


def report(args, pairs, of_torch, of_job):
    detections = sum(int((wanted["scores"] >= SCORE).sum()) for _, wanted in pairs)
    facts = {
        "CPU": cpu_name(),
        "Network": f"{args.model} of torchvision, seeded weights, {SIZE[0]}x{SIZE[1]}",
        "Images": f"{args.images} JPEGs of 300x300 to 1280x720 pixels, portrait and landscape",
        "Compared": f"what has a score of {SCORE} or more: class, score within {SCORES_APART}, and box and "
        f"mask with an intersection over union of {IOU}",
    }
    header = ["images", "detections of torch", "the job finds of them", "torch finds of the job's"]
    table = markdown_table(header, [[f"{len(pairs)}", f"{detections:,}", f"{of_torch:.2%}", f"{of_job:.2%}"]])
    return "\n".join([*(f"- {name}: {fact}" for name, fact in facts.items()), "", table])


if __name__ == "__main__":
    main()
