"""Drawn shapes, and a detector that learns them in two minutes on a GPU.

Half precision can be judged only by a network that knows what it looks for: with random weights hundreds of
boxes have nearly the same score, and which of them is kept is a matter of the last bit.
"""

import math
import time

import torch

from tests.models.zoo import detection_model

KINDS = ("box", "ellipse", "triangle", "ring")
COLOURS = ((0.9, 0.2, 0.2), (0.2, 0.8, 0.3), (0.3, 0.4, 0.95), (0.95, 0.85, 0.2), (0.7, 0.3, 0.8))
LARGEST = 0.3  # of the picture's height


def drawn(height, width, count, seed=0, device="cpu"):
    """A picture, 3xHxW between 0 and 1, and what is to be seen there as torchvision wants to be told it.

    Later shapes lie over earlier ones; those of which little is seen are not among the targets.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=random)

    y = torch.arange(height, device=device)[:, None] + 0.5
    x = torch.arange(width, device=device) + 0.5
    ground = uniform(0.0, 1.0, 1, 3, 6, 8).to(device)
    picture = 0.3 + 0.3 * torch.nn.functional.interpolate(ground, (height, width), mode="bilinear")[0]
    top = torch.full((height, width), -1, device=device)
    labels, areas = [], []
    for index in range(count):
        kind, colour = (int(torch.randint(0, n, (), generator=random)) for n in (len(KINDS), len(COLOURS)))
        tall = height * LARGEST * float(uniform(0.1, 1.0)) ** 1.5 + 8
        wide = tall * float(uniform(0.6, 1.6))
        u = (x - float(uniform(wide / 2, width - wide / 2))) / (wide / 2)
        v = (y - float(uniform(tall / 2, height - tall / 2))) / (tall / 2)
        inside = _inside(KINDS[kind], u, v)
        paint = torch.tensor(COLOURS[colour], device=device) * float(uniform(0.8, 1.1))
        picture = torch.where(inside, paint[:, None, None], picture)
        top[inside] = index
        labels.append(1 + kind * len(COLOURS) + colour)
        areas.append(inside.sum())
    noise = torch.rand(picture.shape, generator=random).to(device)
    masks = top == torch.arange(count, device=device)[:, None, None]
    seen = [index for index in range(count) if masks[index].sum() > 0.4 * areas[index]]
    masks = masks[seen]
    targets = {
        "boxes": torch.stack([_box_of(mask) for mask in masks]),
        "labels": torch.tensor([labels[index] for index in seen], device=device),
        "masks": masks.to(torch.uint8),
    }
    return (picture + 0.1 * (noise - 0.5)).clamp(0, 1), targets


def _inside(kind, u, v):
    box = (u.abs() <= 1) & (v.abs() <= 1)
    radius = u**2 + v**2
    return {
        "box": box,
        "ellipse": radius <= 1,
        "triangle": box & (u.abs() <= (1 + v) / 2),
        "ring": (radius <= 1) & (radius >= 0.3),
    }[kind]


def _box_of(mask):
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]).float()


def trained_on_shapes(name="maskrcnn_resnet50_fpn", seconds=90, size=(480, 800), device="cuda", **options):
    """A model of the zoo, trained for so long; `options` go to torchvision, as for `detection_model`."""
    model = detection_model(name, **options).to(device)
    final = model.transform.min_size, model.transform.max_size
    model.transform.min_size, model.transform.max_size = (min(size),), max(size)
    for last in (model.roi_heads.box_predictor, model.rpn.head):
        for part in last.modules():
            if isinstance(part, (torch.nn.Linear, torch.nn.Conv2d)):
                torch.nn.init.normal_(part.weight, std=0.01)
                torch.nn.init.zeros_(part.bias)
    anchors = model.rpn.anchor_generator.cell_anchors
    model.train()
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9, weight_decay=1e-4)
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        pictures, targets = zip(
            *(drawn(*size, 25, seed=1000 + 4 * step + i, device=device) for i in range(4))
        )
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * done)) / 2
        with torch.autocast(device, dtype=torch.bfloat16):
            losses = model(list(pictures), list(targets))
        loss = sum(losses.values())
        if not torch.isfinite(loss):
            raise RuntimeError(f"training failed: {losses}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        step += 1
    model.transform.min_size, model.transform.max_size = final
    model.rpn.anchor_generator.cell_anchors = anchors  # autocast has rounded them
    return model.eval()
