"""Drawn shapes, and a detector that learns them in two minutes on a GPU.

Half precision can be judged only by a network that knows what it looks for: with random weights hundreds of
boxes have nearly the same score, and which of them is kept is a matter of the last bit.
"""

import math
import time

import torch
import torchvision

from tests.models.zoo import detection_model

KINDS = ("box", "ellipse", "triangle", "ring")
COLOURS = ((0.9, 0.2, 0.2), (0.2, 0.8, 0.3), (0.3, 0.4, 0.95), (0.95, 0.85, 0.2), (0.7, 0.3, 0.8))


def drawn(height, width, count, seed=0, device="cpu", largest=0.3):
    """An image, 3xHxW between 0 and 1, and what is to be seen there, as torchvision wants to be told it.

    `largest` is of the image's height. Later shapes lie over earlier ones; those of which little is seen
    are not among the targets.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low, high, *shape):
        return (low + (high - low) * torch.rand(shape, generator=random)).to(device)

    kind, colour = (
        torch.randint(0, len(names), (count,), generator=random).to(device) for names in (KINDS, COLOURS)
    )
    tall = height * largest * uniform(0.1, 1.0, count) ** 1.5 + 8
    wide = tall * uniform(0.6, 1.6, count)
    inside = _inside(
        kind[:, None, None],
        (torch.arange(width, device=device) + 0.5 - _centres(wide, width, uniform))
        / (wide[:, None, None] / 2),
        (torch.arange(height, device=device)[:, None] + 0.5 - _centres(tall, height, uniform))
        / (tall[:, None, None] / 2),
    )
    order = torch.arange(count, device=device)[:, None, None]
    top = torch.where(inside, order, -1).amax(0)
    ground = torch.nn.functional.interpolate(uniform(0.3, 0.6, 1, 3, 6, 8), (height, width), mode="bilinear")[
        0
    ]
    paint = torch.tensor(COLOURS, device=device)[colour] * uniform(0.8, 1.1, count, 1)
    image = torch.where(top < 0, ground, paint[top].permute(2, 0, 1))
    image = (image + uniform(-0.05, 0.05, 3, height, width)).clamp(0, 1)
    masks = top == order
    seen = masks.sum((1, 2)) > 0.4 * inside.sum((1, 2))
    boxes = torchvision.ops.masks_to_boxes(masks[seen])
    targets = {
        "boxes": boxes + torch.tensor([0, 0, 1, 1], device=device),
        "labels": (1 + kind * len(COLOURS) + colour)[seen],
        "masks": masks[seen].to(torch.uint8),
    }
    return image, targets


def _centres(lengths, whole, uniform):
    """Places for the middle of shapes so that they are inside the image."""
    return (lengths / 2 + uniform(0.0, 1.0, len(lengths)) * (whole - lengths))[:, None, None]


def _inside(kind, u, v):
    """Which pixels are in a shape, by their place from its middle, in halves of its sides."""
    radius = u**2 + v**2
    box = (u.abs() <= 1) & (v.abs() <= 1)
    return torch.where(
        kind < 2,
        torch.where(kind == 0, box, radius <= 1),
        torch.where(kind == 2, box & (u.abs() <= (1 + v) / 2), (radius <= 1) & (radius >= 0.3)),
    )


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
        images, targets = zip(*(drawn(*size, 25, seed=1000 + 4 * step + i, device=device) for i in range(4)))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * done)) / 2
        with torch.autocast(device, dtype=torch.bfloat16):
            losses = model(list(images), list(targets))
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
