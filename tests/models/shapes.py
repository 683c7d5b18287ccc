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


def drawn(height, width, count, seed=0, device="cpu", largest=0.3, opacity=1.0, noise=0.05):
    """An image, 3xHxW between 0 and 1, and what is to be seen there, as torchvision wants to be told it.

    `largest` is of the image's height. Later shapes lie over earlier ones; those of which little is seen
    are not among the targets. A small `opacity` and much `noise` make shapes hard to find.
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
    image = torch.where(top < 0, ground, ground.lerp(paint[top].permute(2, 0, 1), opacity))
    image = (image + uniform(-noise, noise, 3, height, width)).clamp(0, 1)
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
    return train_on_shapes(detection_model(name, **options).to(device), seconds, size)


def train_on_shapes(model, seconds, size=(480, 800), steps=None, **look):
    """Train one of torchvision's detectors for so long, and so many steps; `look` goes to `drawn`."""
    device = next(model.parameters()).device.type
    final = model.transform.min_size, model.transform.max_size
    model.transform.min_size, model.transform.max_size = (min(size),), max(size)
    for last in _last_layers(model):
        for part in last.modules():
            if isinstance(part, (torch.nn.Linear, torch.nn.Conv2d)):
                torch.nn.init.normal_(part.weight, std=0.01)
                torch.nn.init.zeros_(part.bias)
    if not hasattr(model, "roi_heads"):  # the focal loss needs scores that are small at first
        torch.nn.init.constant_(model.head.classification_head.cls_logits.bias, -math.log(99))
    generator = (model.rpn if hasattr(model, "roi_heads") else model).anchor_generator
    anchors = generator.cell_anchors
    model.train()
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9, weight_decay=1e-4)
    for step, done in _steps_in(seconds, steps):
        seeds = (1000 + 4 * step + index for index in range(4))
        images, targets = zip(*(drawn(*size, 25, seed, device, **look) for seed in seeds))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * done)) / 2
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
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
    model.transform.min_size, model.transform.max_size = final
    generator.cell_anchors = anchors  # autocast has rounded them
    return model.eval()


def _last_layers(model):
    if hasattr(model, "roi_heads"):
        return model.roi_heads.box_predictor, model.rpn.head
    return model.head.classification_head.cls_logits, model.head.regression_head.bbox_reg


def train_to_enlarge(network, scale, seconds, size=(64, 64)):
    """Train a super-resolution network for so long to enlarge images of shapes, whose values are 0 to 1."""
    device = next(network.parameters()).device.type
    large = tuple(scale * side for side in size)
    optimizer = torch.optim.Adam(network.train().parameters(), lr=0.0)
    for step, done in _steps_in(seconds):
        for group in optimizer.param_groups:
            group["lr"] = 4e-4 * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * done)) / 2
        seeds = (8 * step + index for index in range(8))
        wanted = torch.stack([drawn(*large, 12, seed, device)[0] for seed in seeds])
        loss = (network(torch.nn.functional.avg_pool2d(wanted, scale)) - wanted).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return network.eval()


def _steps_in(seconds, steps=None):
    """(number of the step, share of the training that is over) until the time or all steps are."""
    start, step = time.monotonic(), 0
    while (done := max((time.monotonic() - start) / seconds, step / steps if steps else 0)) < 1:
        yield step, done
        step += 1
    print(f"trained for {step} steps", flush=True)
