"""One-stage detectors of the shape of YOLOv8 and YOLO11, with NMS and seeded weights.

They are written from the published descriptions of these architectures. `yolo_model(name)` gives one of
YOLO_MODELS, in evaluation: boxes, scores and labels of an image of 32n x 32m pixels.
"""

import torch
import torchvision
from torch import nn

STRIDES = 8, 16, 32
BINS = 16  # of the distribution of a box's side
SCORE, OVERLAP, MOST = 0.25, 0.7, 300


def conv(channels, filters, kernel=1, stride=1, groups=1, activation=True):
    layers = [
        nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(filters, eps=1e-3),
    ]
    return nn.Sequential(*layers, *([nn.SiLU()] if activation else []))


def depthwise(channels, kernel=3, activation=True):
    return conv(channels, channels, kernel, groups=channels, activation=activation)


class Bottleneck(nn.Module):
    def __init__(self, channels, adds, part=0.5):
        super().__init__()
        inner = int(channels * part)
        self.layers = nn.Sequential(conv(channels, inner, 3), conv(inner, channels, 3))
        self.adds = adds

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


class ThreeConvolutions(nn.Module):
    """C3: one branch of bottlenecks, and one that goes past them."""

    def __init__(self, channels, adds, count=2):
        super().__init__()
        inner = channels // 2
        self.first, self.past = conv(channels, inner), conv(channels, inner)
        self.body = nn.Sequential(*(Bottleneck(inner, adds, 1.0) for _ in range(count)))
        self.last = conv(2 * inner, channels)

    def forward(self, x):
        return self.last(torch.cat([self.body(self.first(x)), self.past(x)], 1))


class Stage(nn.Module):
    """C2f and C3k2: the results of all blocks, one after the other, are concatenated."""

    def __init__(self, channels, filters, block, count=1, part=0.5):
        super().__init__()
        self.inner = int(filters * part)
        self.first = conv(channels, 2 * self.inner)
        self.blocks = nn.ModuleList(block(self.inner) for _ in range(count))
        self.last = conv((2 + count) * self.inner, filters)

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """SPPF: three poolings, one after the other."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.last = conv(channels, channels // 2), conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Attention(nn.Module):
    """Each pixel attends to all others, with positions by a depthwise convolution."""

    def __init__(self, channels):
        super().__init__()
        self.heads = channels // 64
        self.of_head, self.of_key = channels // self.heads, channels // self.heads // 2
        self.qkv = conv(channels, channels + 2 * self.heads * self.of_key, activation=False)
        self.positions = depthwise(channels, activation=False)
        self.last = conv(channels, channels, activation=False)

    def forward(self, x):
        batch, channels, height, width = x.shape
        qkv = self.qkv(x).view(batch, self.heads, 2 * self.of_key + self.of_head, height * width)
        query, key, value = qkv.split([self.of_key, self.of_key, self.of_head], 2)
        weights = (query.transpose(-2, -1) @ key * self.of_key**-0.5).softmax(-1)
        found = (value @ weights.transpose(-2, -1)).view(batch, channels, height, width)
        return self.last(found + self.positions(value.reshape(batch, channels, height, width)))


class PartAttends(nn.Module):
    """C2PSA: half of the channels go through an attention block."""

    def __init__(self, channels):
        super().__init__()
        inner = channels // 2
        self.first, self.last = conv(channels, channels), conv(channels, channels)
        self.attention = Attention(inner)
        self.feed = nn.Sequential(conv(inner, 2 * inner), conv(2 * inner, inner, activation=False))

    def forward(self, x):
        past, inside = self.first(x).chunk(2, 1)
        inside = inside + self.attention(inside)
        return self.last(torch.cat([past, inside + self.feed(inside)], 1))


class Yolo(nn.Module):
    """A backbone of five levels, a pyramid up and down, and a head a level."""

    def __init__(self, levels, neck, last, head):
        super().__init__()
        self.levels, self.last = nn.ModuleList(levels), last  # to strides 8, 16 and 32
        self.up = nn.ModuleList(neck[:2])
        self.down = nn.ModuleList(neck[2:4])
        self.joined = nn.ModuleList(neck[4:])
        self.heads = nn.ModuleList(head)
        self.wider = nn.Upsample(scale_factor=2, mode="nearest")

    def raw(self, image):
        """The boxes' distributions and the classes' logits of each level."""
        maps = []
        for level in self.levels:
            image = level(image)
            maps.append(image)
        eighth, sixteenth, deepest = *maps[:2], self.last(maps[2])
        middle = self.up[0](torch.cat([self.wider(deepest), sixteenth], 1))
        large = self.up[1](torch.cat([self.wider(middle), eighth], 1))
        middle = self.joined[0](torch.cat([self.down[0](large), middle], 1))
        small = self.joined[1](torch.cat([self.down[1](middle), deepest], 1))
        return [head(map_) for head, map_ in zip(self.heads, (large, middle, small))]

    def forward(self, image):
        found = [
            (boxes_of(sides, stride), classes) for (sides, classes), stride in zip(self.raw(image), STRIDES)
        ]
        boxes = torch.cat([boxes for boxes, _ in found])
        logits = torch.cat([classes[0].flatten(1).T for _, classes in found])
        scores, labels = logits.float().sigmoid().max(1)
        passed = scores > SCORE
        boxes, scores, labels = boxes[passed], scores[passed], labels[passed]
        kept = torchvision.ops.batched_nms(boxes, scores, labels, OVERLAP)[:MOST]
        return boxes[kept], scores[kept], labels[kept]


def boxes_of(sides, stride):
    """Corners, from the expected distance of each side to the pixel's centre."""
    _, _, height, width = sides.shape
    bins = torch.arange(BINS, dtype=torch.float32, device=sides.device)
    distances = (sides.float().view(4, BINS, -1).softmax(1) * bins[:, None]).sum(1)
    x = torch.arange(width, dtype=torch.float32, device=sides.device) + 0.5
    y = torch.arange(height, dtype=torch.float32, device=sides.device) + 0.5
    y, x = torch.meshgrid(y, x, indexing="ij")
    centre = torch.stack([x.flatten(), y.flatten()])
    return (torch.cat([centre - distances[:2], centre + distances[2:]]) * stride).T


class Head(nn.Module):
    def __init__(self, channels, sides, classes):
        super().__init__()
        self.sides, self.classes = sides, classes

    def forward(self, x):
        return self.sides(x), self.classes(x)


def yolov8n(classes=80):
    def stage(channels, filters, count=1, adds=False):
        return Stage(channels, filters, lambda inner: Bottleneck(inner, adds, 1.0), count)

    levels = [
        nn.Sequential(
            *(conv(3, 16, 3, 2), conv(16, 32, 3, 2), stage(32, 32, 1, True)),
            *(conv(32, 64, 3, 2), stage(64, 64, 2, True)),
        ),
        nn.Sequential(conv(64, 128, 3, 2), stage(128, 128, 2, True)),
        nn.Sequential(conv(128, 256, 3, 2), stage(256, 256, 1, True)),
    ]
    neck = [stage(384, 128), stage(192, 64), conv(64, 64, 3, 2), conv(128, 128, 3, 2)]
    neck += [stage(192, 128), stage(384, 256)]

    def head(channels):
        sides = nn.Sequential(conv(channels, 64, 3), conv(64, 64, 3), nn.Conv2d(64, 4 * BINS, 1))
        return Head(
            channels,
            sides,
            nn.Sequential(conv(channels, 80, 3), conv(80, 80, 3), nn.Conv2d(80, classes, 1)),
        )

    return Yolo(levels, neck, Pyramid(256), [head(channels) for channels in (64, 128, 256)])


def yolo11s(classes=80):
    def stage(channels, filters, deep=False, part=0.5):
        def block(inner):
            return ThreeConvolutions(inner, True) if deep else Bottleneck(inner, True)

        return Stage(channels, filters, block, 1, part)

    levels = [
        nn.Sequential(
            *(conv(3, 32, 3, 2), conv(32, 64, 3, 2), stage(64, 128, part=0.25)),
            *(conv(128, 128, 3, 2), stage(128, 256, part=0.25)),
        ),
        nn.Sequential(conv(256, 256, 3, 2), stage(256, 256, True)),
        nn.Sequential(conv(256, 512, 3, 2), stage(512, 512, True)),
    ]
    neck = [stage(768, 256), stage(512, 128), conv(128, 128, 3, 2), conv(256, 256, 3, 2)]
    neck += [stage(384, 256), stage(768, 512, True)]

    def head(channels):
        sides = nn.Sequential(conv(channels, 64, 3), conv(64, 64, 3), nn.Conv2d(64, 4 * BINS, 1))
        pairs = [part for at in (channels, 128) for part in (depthwise(at), conv(at, 128))]
        return Head(channels, sides, nn.Sequential(*pairs, nn.Conv2d(128, classes, 1)))

    last = nn.Sequential(Pyramid(512), PartAttends(512))
    return Yolo(levels, neck, last, [head(channels) for channels in (128, 256, 512)])


YOLO_MODELS = {"yolov8n": yolov8n, "yolo11s": yolo11s}


def yolo_model(name, seed=0, images=None, **options):
    """One of YOLO_MODELS, with norms fitted to `images`: some tens of boxes are found in such as these."""
    from tests.models.zoo import random_image

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = YOLO_MODELS[name](**options)
        images = images or [random_image(256, 256, seed=index)[None] for index in range(2)]
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = None
        model.train()
        for image in images:
            model.raw(torch.cat([image, image.flip(3)]))
        model.eval()
        found = model.raw(images[0])
        for head, (sides, classes) in zip(model.heads, found):
            spread(head.sides[-1], sides, 1.5, 0.0)
            spread(head.classes[-1], classes, 1.5, -5.5)
    return model


def spread(layer, outputs, deviation, mean):
    """Make each channel of a layer give numbers of this mean, and all of this standard deviation."""
    now = outputs.mean((0, 2, 3))
    factor = deviation / (outputs - now[:, None, None]).std()
    layer.weight *= factor
    layer.bias.copy_((layer.bias - now) * factor + mean)
