"""Networks that change the resolution by shuffling channels into pixels, with seeded weights.

`super_resolution_model(name)` gives one of `SUPER_RESOLUTION_MODELS`, in evaluation. Weights are drawn such
that the spread of the activations stays the same with the depth, as training would have it: rounding errors
are then not magnified, and fp16 neither overflows nor vanishes.
"""

import torch
from torch import nn


def conv(channels, filters, kernel=3, **options):
    return nn.Conv2d(channels, filters, kernel, padding=kernel // 2, **options)


class Residual(nn.Module):
    """The input added to what the layers make of it."""

    def __init__(self, *layers, scale=1.0):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.scale = scale

    def forward(self, x):
        y = self.layers(x)
        return x + (y if self.scale == 1.0 else y * self.scale)


class ChannelAttention(nn.Module):
    """Each channel weighed by what the means of all channels say, as in RCAN."""

    def __init__(self, channels, reduction):
        super().__init__()
        inner = channels // reduction
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.weigh = nn.Sequential(
            conv(channels, inner, 1), nn.ReLU(), conv(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return x * self.weigh(self.mean(x))


class UNet(nn.Module):
    """Two levels down by pixel_unshuffle and up by pixel_shuffle, with skip connections."""

    def __init__(self, channels=16):
        super().__init__()
        c = channels
        self.enter = nn.Sequential(conv(3, c), nn.LeakyReLU(0.1))
        self.down = nn.Sequential(nn.PixelUnshuffle(2), conv(4 * c, 2 * c), nn.LeakyReLU(0.1))
        self.deep = nn.Sequential(nn.PixelUnshuffle(2), conv(8 * c, 4 * c), nn.LeakyReLU(0.1))
        self.rise = nn.Sequential(conv(4 * c, 8 * c), nn.PixelShuffle(2))
        self.join = nn.Sequential(conv(4 * c, 2 * c), nn.LeakyReLU(0.1))
        self.lift = nn.Sequential(conv(2 * c, 4 * c), nn.PixelShuffle(2))
        self.leave = nn.Sequential(conv(2 * c, c), nn.LeakyReLU(0.1), conv(c, 3))

    def forward(self, x):
        top = self.enter(x)
        middle = self.down(top)
        middle = self.join(torch.cat([middle, self.rise(self.deep(middle))], 1))
        return self.leave(torch.cat([top, self.lift(middle)], 1))


def thread(channels=64):
    """The network of the report that made depth-to-space known as slow in TVM: upscales by 4."""
    c = channels
    block = [Residual(conv(c, c), nn.LeakyReLU(0.2), conv(c, c)) for _ in range(2)]
    return nn.Sequential(
        nn.Sequential(conv(3, c), nn.LeakyReLU(0.2)),
        *block,
        nn.Sequential(conv(c, 2 * c), nn.PixelShuffle(2), nn.LeakyReLU(0.2)),
        nn.Sequential(conv(c // 2, c), nn.PixelShuffle(2), nn.LeakyReLU(0.2)),
        conv(c // 4, 3),
    )


def espcn(scale=3):
    """Shi et al. 2016: on the luminance, the shuffle comes last."""
    return nn.Sequential(
        *(conv(1, 64, 5), nn.Tanh(), conv(64, 32), nn.Tanh(), conv(32, scale**2), nn.PixelShuffle(scale))
    )


def edsr(scale=2, channels=64, blocks=16, res_scale=1.0, prelu=False, clamp=False):
    """Lim et al. 2017; as given, EDSR-baseline. Others have PReLU after each shuffle, or clamp."""
    c = channels
    body = [Residual(conv(c, c), nn.ReLU(), conv(c, c), scale=res_scale) for _ in range(blocks)]
    end = [conv(c, 3), Clamp(-3.0, 3.0)] if clamp else [conv(c, 3)]
    return nn.Sequential(conv(3, c), Residual(*body, conv(c, c)), *upsampler(scale, c, prelu), *end)


def rcan(scale=2, channels=64, groups=2, blocks=2, reduction=16):
    """Zhang et al. 2018, with fewer groups and blocks."""
    c = channels

    def block():
        return Residual(conv(c, c), nn.ReLU(), conv(c, c), ChannelAttention(c, reduction))

    body = [Residual(*[block() for _ in range(blocks)], conv(c, c)) for _ in range(groups)]
    return nn.Sequential(conv(3, c), Residual(*body, conv(c, c)), *upsampler(scale, c), conv(c, 3))


def upsampler(scale, channels, prelu=False):
    """Convolution and shuffle by 2, and PReLU if wanted, until the scale is reached."""
    layers = []
    for _ in range(scale.bit_length() - 1):
        layers += [conv(channels, 4 * channels), nn.PixelShuffle(2)]
        layers += [nn.PReLU(channels)] if prelu else []
    return layers


def srresnet(scale=4, channels=64, blocks=8):
    """Ledig et al. 2017, with fewer blocks and without batch norms: ends of 9x9, PReLU."""
    c = channels
    body = [Residual(conv(c, c), nn.PReLU(c), conv(c, c)) for _ in range(blocks)]
    start = nn.Sequential(conv(3, c, 9), nn.PReLU(c))
    return nn.Sequential(start, Residual(*body, conv(c, c)), *upsampler(scale, c, True), conv(c, 3, 9))


class Compact(nn.Module):
    """The compact network of Real-ESRGAN: plain convolutions, and the enlarged image added at the end."""

    def __init__(self, scale=4, channels=64, layers=16):
        super().__init__()
        c = channels
        body = [part for _ in range(layers) for part in (conv(c, c), nn.PReLU(c))]
        end = [conv(c, 3 * scale**2), nn.PixelShuffle(scale)]
        self.layers = nn.Sequential(conv(3, c), nn.PReLU(c), *body, *end)
        self.scale = scale

    def forward(self, x):
        return self.layers(x) + nn.functional.interpolate(x, scale_factor=self.scale, mode="nearest")


class Dense(nn.Module):
    """Five convolutions, each of which gets what all before it gave, and a residual."""

    def __init__(self, channels, growth):
        super().__init__()
        self.layers = nn.ModuleList(conv(channels + at * growth, growth) for at in range(4))
        self.last = conv(channels + 4 * growth, channels)

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(nn.functional.leaky_relu(layer(torch.cat(found, 1)), 0.2))
        return x + 0.2 * self.last(torch.cat(found, 1))


class RRDB(nn.Module):
    """Wang et al. 2018, with fewer blocks of three dense ones, enlarged by nearest neighbours."""

    def __init__(self, channels=64, growth=32, blocks=3):
        super().__init__()
        c = channels
        self.first = conv(3, c)
        dense = [Residual(*(Dense(c, growth) for _ in range(3)), scale=0.2) for _ in range(blocks)]
        self.body = Residual(*dense, conv(c, c))
        self.wider = nn.ModuleList(conv(c, c) for _ in range(2))
        self.last = nn.Sequential(conv(c, c), nn.LeakyReLU(0.2), conv(c, 3))

    def forward(self, x):
        x = self.body(self.first(x))
        for layer in self.wider:
            larger = nn.functional.interpolate(x, scale_factor=2, mode="nearest")
            x = nn.functional.leaky_relu(layer(larger), 0.2)
        return self.last(x)


class Clamp(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x):
        return torch.clamp(x, self.low, self.high)


class InterpolatedSkip(nn.Module):
    """What a network adds to the image upscaled by interpolation."""

    def __init__(self, network, scale):
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, x):
        larger = nn.functional.interpolate(x, scale_factor=self.scale, mode="bilinear")
        return self.network(x) + larger


SUPER_RESOLUTION_MODELS = {
    "thread": thread,
    "espcn": espcn,
    "edsr_x2": lambda **options: edsr(2, **options),
    "edsr_x4": lambda **options: edsr(4, **options),
    "rcan": rcan,
    "unet": UNet,
    "srresnet": srresnet,
    "compact": Compact,
    "rrdb": RRDB,
    "interpolated": lambda **options: InterpolatedSkip(edsr(2, **options), 2),
}


def super_resolution_model(name, seed=0, **options):
    """One of SUPER_RESOLUTION_MODELS with weights that depend on nothing but the arguments."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = SUPER_RESOLUTION_MODELS[name](**options).eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.normal_(layer.bias, std=0.1)
        for layer in model.modules():
            if isinstance(layer, Residual):  # else each one would double the variance
                last = [each for each in layer.layers.modules() if isinstance(each, nn.Conv2d)][-1]
                last.weight *= 0.3
            if isinstance(layer, nn.PReLU):
                nn.init.uniform_(layer.weight, 0.05, 0.4)  # so that a slope in the wrong place shows
    return model


def channels_of(name):
    """Of the images that a model takes."""
    return 1 if name == "espcn" else 3
