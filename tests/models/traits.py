"""Small networks, each with one trait that a pass or a target may not expect, in groups."""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

CHANNELS, SIZE = 8, (16, 16)
TOKENS, WIDTH = 64, 32  # multiples of what tensor cores multiply


class Apply(nn.Module):
    """A function of layers and the image as a network."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x):
        return self.function(*self.layers, x)


class Group(nn.Module):
    """Networks that see the same image; the outputs of all."""

    def __init__(self, networks):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x):
        return tuple(network(x) for network in self.networks)


def conv(inputs=CHANNELS, outputs=CHANNELS, kernel=3, **options):
    options.setdefault("padding", kernel // 2)
    return nn.Conv2d(inputs, outputs, kernel, **options)


def between(*layers, outputs=CHANNELS):
    """The layers between two convolutions."""
    return nn.Sequential(conv(), nn.ReLU(), *layers, conv(outputs))


def function(apply, *layers, outputs=CHANNELS):
    return between(Apply(apply, *layers), outputs=outputs)


def behind(apply, *layers):
    """What does not give an image, behind a convolution."""
    return nn.Sequential(conv(), Apply(apply, *layers))


def resize(mode, **options):
    return function(lambda x: F.interpolate(x, mode=mode, **options))


class Attention(nn.Module):
    def __init__(self, fused=False, masked=False, heads=2):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fused, self.masked, self.heads = fused, masked, heads

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        bias = torch.arange(tokens) / tokens if self.masked else None
        if self.fused:
            bias = None if bias is None else bias.expand(tokens, tokens)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            weights = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
            y = F.softmax(weights if bias is None else weights + bias, -1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.after = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.perceptron(self.after(x))


def of_tokens(*layers):
    """Patches of the image as tokens, and back."""

    def run(patch, encode, head, x):
        tokens = encode(patch(x).flatten(2).transpose(1, 2))
        return head(tokens.transpose(1, 2).reshape(1, WIDTH, 8, 8))

    return Apply(run, nn.Conv2d(CHANNELS, WIDTH, 2, 2), nn.Sequential(*layers), conv(WIDTH, 4))


def volume(*layers):
    return behind(lambda layers, x: layers(x[:, :, None].repeat(1, 1, 4, 1, 1)), nn.Sequential(*layers))


def signal(*layers):
    return behind(lambda layers, x: layers(x.flatten(2)), nn.Sequential(*layers))


def sequence(layer):
    return behind(lambda layer, x: layer(x.flatten(2).transpose(1, 2)[:, :3])[0], layer)


def channel_shuffle(x):
    return x.reshape(1, 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


def rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)


def regions(x):
    return torchvision.ops.roi_align(x, torch.tensor([[0.0, 0, 0, 5, 5], [0, 1, 1, 8, 9]]), 4, 1.0, 2)


def sampled(x):
    grid = torch.linspace(-0.9, 0.9, 12).reshape(2, 3, 2)[None]
    return F.grid_sample(x, grid, align_corners=False)


GROUPS = {
    "convolutions": lambda: [
        between(conv(groups=2)),
        between(conv(groups=4, stride=2)),
        between(conv(groups=2, dilation=2, padding=2)),
        between(conv(groups=CHANNELS)),
        between(conv(outputs=16, groups=CHANNELS), outputs=16),
        between(conv(outputs=24, groups=CHANNELS), outputs=24),
        between(conv(groups=CHANNELS, dilation=2, padding=2)),
        between(conv(dilation=2, padding=2)),
        between(nn.Conv2d(CHANNELS, CHANNELS, (1, 3), padding=(0, 1))),
        nn.Sequential(conv(outputs=7), conv(7, 5), conv(5, 3)),
    ],
    "transposed convolutions": lambda: [
        between(nn.ConvTranspose2d(CHANNELS, CHANNELS, 4, 2, 1)),
        between(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, 2, 1, output_padding=1)),
        between(nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)),
        between(nn.ConvTranspose2d(CHANNELS, CHANNELS, 4, 2, 1, groups=2)),
    ],
    "of 1 and 3 axes": lambda: [
        signal(nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1), nn.MaxPool1d(2), nn.AvgPool1d(2)),
        signal(nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1, groups=2)),
        signal(nn.ConvTranspose1d(CHANNELS, CHANNELS, 4, 2, 1)),
        volume(nn.Conv3d(CHANNELS, CHANNELS, 3, padding=1), nn.MaxPool3d(2), nn.AvgPool3d(2)),
        volume(nn.Conv3d(CHANNELS, CHANNELS, 3, groups=2)),
        volume(nn.ConvTranspose3d(CHANNELS, 2, 2, 2)),
    ],
    "norms": lambda: [
        between(nn.BatchNorm2d(CHANNELS)),
        between(nn.GroupNorm(2, CHANNELS)),
        between(nn.InstanceNorm2d(CHANNELS)),
        between(nn.InstanceNorm2d(CHANNELS, affine=True)),
        between(nn.LocalResponseNorm(3)),
        function(lambda norm, x: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(CHANNELS)),
        function(rms_norm),
    ],
    "sizes": lambda: [
        resize("nearest", size=(20, 24)),
        resize("bilinear", size=(20, 24), align_corners=False),
        resize("bilinear", size=(20, 24), align_corners=True),
        resize("bicubic", size=(20, 24), align_corners=False),
        resize("nearest", scale_factor=2),
        between(nn.PixelShuffle(2), outputs=2),
        between(nn.PixelUnshuffle(2), outputs=32),
    ],
    "pools": lambda: [
        between(nn.MaxPool2d(2)),
        between(nn.MaxPool2d(3, 2, ceil_mode=True)),
        between(nn.MaxPool2d(3, 1, 1, dilation=2)),
        between(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        between(nn.AvgPool2d(3, 2, ceil_mode=True)),
        between(nn.AdaptiveAvgPool2d((3, 4))),
        between(nn.AdaptiveMaxPool2d((3, 4))),
        between(nn.AdaptiveAvgPool2d(1)),
        between(nn.AdaptiveMaxPool2d(1)),
        function(lambda x: x.amax((2, 3), keepdim=True) + x.sum((2, 3), keepdim=True) / 256),
    ],
    "activations": lambda: (
        [
            between(activation)
            for activation in (
                *(nn.ReLU6(), nn.LeakyReLU(0.1), nn.PReLU(), nn.PReLU(CHANNELS), nn.Hardswish()),
                *(nn.Hardsigmoid(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.Tanh(), nn.Softmax(1)),
            )
        ]
        + [function(lambda x: x * torch.tanh(F.softplus(x)))]
    ),  # mish
    "channels": lambda: [
        between(torchvision.ops.SqueezeExcitation(CHANNELS, 4)),
        function(channel_shuffle),
        function(lambda a, b, x: torch.cat([a(x[:, :4]), b(x[:, 4:])], 1), conv(4, 4), conv(4, 4)),
        function(lambda a, x: torch.cat([x.chunk(2, 1)[0], a(x.chunk(2, 1)[1])], 1), conv(4, 4)),
        function(lambda x: x[:, :, 1:-1, ::2]),
        function(lambda x: torch.roll(x, (1, 2), (2, 3))),
        function(lambda x: torch.where(x > 0.5, x, x * 0.1)),
        *(function(lambda x, mode=m: F.pad(x, (1, 2, 1, 2), mode)) for m in ("constant", "reflect")),
        function(lambda x: F.pad(x, (1, 2, 1, 2), "replicate")),
    ],
    "attention": lambda: [
        of_tokens(Attention()),
        of_tokens(Attention(masked=True)),
        of_tokens(Attention(fused=True)),
        of_tokens(Attention(fused=True, masked=True)),
        of_tokens(Encoder()),
    ],
    "products": lambda: [
        behind(lambda x: F.relu(torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)))),
        behind(lambda x: torch.matmul(x, x.transpose(2, 3))),
        behind(lambda x: torch.einsum("nchw,nkhw->nck", x, x)),
        nn.Sequential(conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10), nn.Softmax(-1)),
        nn.Sequential(conv(), nn.Flatten(), nn.Linear(CHANNELS * 256, 10), nn.ReLU(), nn.Linear(10, 7)),
        sequence(nn.LSTM(CHANNELS, CHANNELS, batch_first=True)),
        sequence(nn.GRU(CHANNELS, CHANNELS, batch_first=True)),
    ],
    "order": lambda: [
        behind(lambda x: torch.topk(x.flatten(1), 5)[0]),
        behind(lambda x: torch.sort(x.flatten(1))[0]),
        behind(lambda x: x.cumsum(2)),
        function(regions),
        function(sampled),
    ],
}


def group(name):
    """The networks of a group as one, with seeded weights, and an image."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Group(GROUPS[name]()).eval()
        return model, torch.randn(1, CHANNELS, *SIZE)
