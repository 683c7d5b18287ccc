"""Convolutions with shuffles, resizes, norms and pools among them, and sums of earlier results.

A description is the input's shape and type, a list of layers, and which results are outputs. A layer
that does not fit what is before it is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import strategies as st
from torch import nn

MAX_SIZE = 24  # of an image's side


def _layer(kind: str, *options: Any) -> st.SearchStrategy[Any]:
    of = [one if isinstance(one, st.SearchStrategy) else st.sampled_from(one) for one in options]
    return st.tuples(st.just(kind), *of)


_earlier, _either = st.integers(0, 7), st.booleans()
_convolution = st.fixed_dictionaries(
    {
        "out": st.sampled_from([1, 3, 4, 8, 12, 16, 36]),
        "kernel": st.sampled_from([1, 3, (3, 1), 2, 5]),
        "stride": st.sampled_from([1, 1, 1, 2]),
        "dilation": st.sampled_from([1, 1, 2]),
        "groups": st.sampled_from([1, 1, 1, 2, 4, "all"]),
        "padding": st.sampled_from([0, "half", "half", (1, 0), "same"]),
        "bias": st.booleans(),
        "mode": st.sampled_from(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"]),
    }
)
_layers = st.one_of(
    _layer("conv", _convolution),
    _layer("conv", _convolution),
    _layer("transposed", [(2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0), (3, 1, 1, 0)]),
    _layer("shuffle", ["module", "view", "reshape", "flatten", "dcr", "half"], [2, 2, 3]),
    _layer("unshuffle", ["module", "view", "slices"], [2, 2, 3]),
    _layer(
        "resize",
        ["nearest", "nearest-exact", "bilinear", "bicubic", "area"],
        [2, 1.5, 0.5, 0.7, 1.3, (7, 9), (16, 16), (1, 1)],
        _either,
    ),
    _layer("activation", st.deferred(lambda: st.sampled_from(["prelu", *ACTIVATIONS]))),
    _layer("norm", ["batch", "group", "instance", "layer"]),
    _layer(
        "pool", ["max", "average", "max ceil", "average ceil", "adaptive", "adaptive max", "mean"], [2, 3]
    ),
    _layer("add", _earlier, _either),  # of an earlier result, where shapes broadcast
    _layer("multiply", _earlier, _either),
    _layer("scale", [0.5, 2.0, 0.0, -1.0, 1e-3], _either),
    _layer("bias", _either),
    _layer("concat", _earlier, _either),
    _layer("split", [2, 3], _either),
    _layer("back", _earlier),  # go on with an earlier result
    _layer("layout"),
    _layer("pad", [(1, 1, 1, 1), (0, 1, 2, 0), (-1, 0, 0, -1)], ["constant", "reflect", "replicate"]),
    _layer("flip", _either),
    _layer("roi_align", [1.0, 0.5, 0.25], [-1, 2], _either),
    _layer("dense", st.integers(1, 5)),
    _layer("channels", [2, 3]),
)


def descriptions() -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "shape": st.tuples(
                st.sampled_from([1, 1, 2]),
                st.sampled_from([1, 3, 4, 8, 16]),
                st.integers(4, 12),
                st.integers(4, 12),
            ),
            "dtype": st.sampled_from(["float32"] * 8 + ["float64", "float16"]),
            "layers": st.lists(_layers, min_size=1, max_size=7),
            "taps": st.lists(st.integers(0, 7), max_size=2),
        }
    )


def build(parts: Any) -> tuple[nn.Module, list[np.ndarray]]:
    dtype = getattr(torch, parts["dtype"])
    example = torch.randn(parts["shape"])
    network = Network(parts["layers"], parts["taps"])
    with torch.no_grad():
        network.eval()(example)  # makes the layers, which must be of the shapes that there are
    for parameter in [*network.parameters(), *network.buffers()]:
        if parameter.is_floating_point():
            parameter.data += 0.05 * torch.randn(parameter.shape)
    return network.to(dtype), [example.to(dtype).numpy()]


class Network(nn.Module):
    def __init__(self, layers: Any, taps: Any) -> None:
        super().__init__()
        self._description, self._taps = layers, taps
        self.made = nn.ModuleDict()

    def layer(self, place: int, make: Any) -> nn.Module:
        name = str(place)
        if name not in self.made:
            self.made[name] = make().eval()
        return self.made[name]

    def forward(self, x: torch.Tensor) -> Any:
        results = [x]
        for place, (kind, *options) in enumerate(self._description):
            after = getattr(self, f"_{kind}")(place, results, *options)
            if (
                after is not None
                and after.numel()
                and max(after.shape[2:], default=1) <= MAX_SIZE
                and after.shape[1] <= 144
            ):
                results.append(after)
        outputs = [results[-1], *(results[tap % len(results)] for tap in self._taps)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _conv(self, place: int, results: Any, options: Any) -> Any:
        x = _image(results)
        if x is None:
            return None
        channels, kernel, dilation = x.shape[1], options["kernel"], options["dilation"]
        groups = channels if options["groups"] == "all" else options["groups"]
        groups = groups if channels % groups == 0 else 1
        out = -(-options["out"] // groups) * groups
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding, stride = options["padding"], options["stride"]
        if padding == "half":
            padding = tuple(dilation * (side - 1) // 2 for side in sides)
        if padding == "same" and stride > 1:
            padding = 0
        widths = (
            (0, 0) if isinstance(padding, str) else padding if isinstance(padding, tuple) else (padding,) * 2
        )
        if any(
            2 * width + size < dilation * (side - 1) + 1
            for width, size, side in zip(widths, x.shape[2:], sides)
        ):
            return None
        if options["mode"] != "zeros" and (padding == "same" or min(x.shape[2:]) <= max(widths)):
            return None
        return self.layer(
            place,
            lambda: nn.Conv2d(
                channels, out, kernel, stride, padding, dilation, groups, options["bias"], options["mode"]
            ),
        )(x)

    def _transposed(self, place: int, results: Any, options: Any) -> Any:
        x = _image(results)
        kernel, stride, padding, more = options
        if x is None:
            return None
        return self.layer(place, lambda: nn.ConvTranspose2d(x.shape[1], 4, kernel, stride, padding, more))(x)

    def _shuffle(self, place: int, results: Any, spelling: str, block: int) -> Any:
        x = _image(results)
        if x is None or x.shape[1] % block**2:
            return None
        n, c, h, w = x.shape
        c //= block**2
        if spelling == "module":
            return F.pixel_shuffle(x, block)
        if spelling == "flatten":
            return x.unflatten(1, (c, block, block)).permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)
        if spelling == "dcr":
            return (
                x.view(n, block, block, c, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c, h * block, w * block)
            )
        if spelling == "half":  # of the width only: near what the passes look for
            return (
                x.view(n, c * block, block, h, w).permute(0, 1, 3, 4, 2).reshape(n, c * block, h, w * block)
            )
        tiles = (
            x.view(n, c, block, block, h, w) if spelling == "view" else x.reshape(n, c, block, block, h, w)
        )
        return tiles.permute(0, 1, 4, 2, 5, 3).reshape(n, c, h * block, w * block)

    def _unshuffle(self, place: int, results: Any, spelling: str, block: int) -> Any:
        x = _image(results)
        if x is None or x.shape[2] % block or x.shape[3] % block:
            return None
        n, c, h, w = x.shape
        if spelling == "module":
            return F.pixel_unshuffle(x, block)
        if spelling == "slices":  # as YOLOv5's Focus
            return torch.cat([x[..., i::block, j::block] for j in range(block) for i in range(block)], 1)
        tiles = x.reshape(n, c, h // block, block, w // block, block).permute(0, 1, 3, 5, 2, 4)
        return tiles.reshape(n, c * block**2, h // block, w // block)

    def _resize(self, place: int, results: Any, mode: str, to: Any, align: bool) -> Any:
        x = _image(results)
        if x is None:
            return None
        corners = align if mode in ("bilinear", "bicubic") else None
        if isinstance(to, tuple):
            return F.interpolate(x, size=to, mode=mode, align_corners=corners)
        if min(x.shape[2:]) * to < 1:
            return None
        return F.interpolate(x, scale_factor=to, mode=mode, align_corners=corners)

    def _activation(self, place: int, results: Any, name: str) -> Any:
        x = results[-1]
        if name == "prelu":
            return self.layer(place, lambda: nn.PReLU(x.shape[1]))(x)
        return ACTIVATIONS[name](x)

    def _norm(self, place: int, results: Any, name: str) -> Any:
        x = _image(results)
        if x is None or (name == "instance" and min(x.shape[2:]) < 2):
            return None
        channels = x.shape[1]
        make = {
            "batch": lambda: nn.BatchNorm2d(channels),
            "group": lambda: nn.GroupNorm(2 if channels % 2 == 0 else 1, channels),
            "instance": lambda: nn.InstanceNorm2d(channels, affine=True),
            "layer": lambda: nn.LayerNorm(list(x.shape[1:])),
        }
        return self.layer(place, make[name])(x)

    def _pool(self, place: int, results: Any, name: str, window: int) -> Any:
        x = _image(results)
        if x is None or min(x.shape[2:]) < window:
            return None
        if name == "mean":
            return x.mean((2, 3), keepdim=True)
        if name.startswith("adaptive"):
            pool = F.adaptive_max_pool2d if "max" in name else F.adaptive_avg_pool2d
            return pool(x, window)
        pool = F.max_pool2d if name.startswith("max") else F.avg_pool2d
        return pool(x, window, 2, ceil_mode="ceil" in name)

    def _add(self, place: int, results: Any, which: int, swapped: bool) -> Any:
        x, other = results[-1], results[which % len(results)]
        if not _broadcasts(x, other):
            return None
        return other + x if swapped else x + other

    def _multiply(self, place: int, results: Any, which: int, swapped: bool) -> Any:
        x, other = results[-1], results[which % len(results)]
        if not _broadcasts(x, other):
            return None
        return other * x if swapped else x * other

    def _scale(self, place: int, results: Any, by: float, swapped: bool) -> Any:
        return by * results[-1] if swapped else results[-1] * by

    def _bias(self, place: int, results: Any, swapped: bool) -> Any:
        x = _image(results)
        if x is None:
            return None
        bias = self.layer(place, lambda: _Bias(x.shape[1])).bias
        return bias + x if swapped else x + bias

    def _concat(self, place: int, results: Any, which: int, swapped: bool) -> Any:
        x, other = results[-1], results[which % len(results)]
        if x.dim() != other.dim() or x.shape[2:] != other.shape[2:]:
            return None
        return torch.cat([other, x] if swapped else [x, other], 1)

    def _split(self, place: int, results: Any, count: int, swapped: bool) -> Any:
        x = results[-1]
        if x.shape[1] % count:
            return None
        first, *rest = x.chunk(count, 1)
        return torch.cat([*rest, first], 1) if swapped else first * rest[0]

    def _back(self, place: int, results: Any, which: int) -> Any:
        return results[which % len(results)]

    def _layout(self, place: int, results: Any) -> Any:
        x = _image(results)
        return None if x is None else x.permute(0, 2, 3, 1).contiguous().relu().permute(0, 3, 1, 2)

    def _pad(self, place: int, results: Any, widths: Any, mode: str) -> Any:
        x = _image(results)
        if x is None or min(x.shape[2:]) < 3:
            return None
        return F.pad(x, widths, mode=mode)

    def _flip(self, place: int, results: Any, both: bool) -> Any:
        x = _image(results)
        return None if x is None else x.flip((2, 3) if both else (3,))

    def _roi_align(self, place: int, results: Any, scale: float, ratio: int, aligned: bool) -> Any:
        x = _image(results)
        if x is None or x.dtype == torch.float16:
            return None
        boxes = torch.tensor(
            [[0, 0.0, 0.0, 6.5, 7.5], [x.shape[0] - 1, 1.5, 2.0, 8.0, 5.0], [0, 3.0, 3.0, 3.2, 3.1]]
        )
        return torchvision.ops.roi_align(x, boxes.to(x.dtype), (3, 2), scale, ratio, aligned)

    def _dense(self, place: int, results: Any, units: int) -> Any:
        x = results[-1].flatten(1)
        return None if x.shape[1] > 2000 else self.layer(place, lambda: nn.Linear(x.shape[1], units))(x)

    def _channels(self, place: int, results: Any, groups: int) -> Any:
        x = _image(results)
        return None if x is None or x.shape[1] % groups else torch.channel_shuffle(x, groups)


class _Bias(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels, 1, 1))


def _image(results: Any) -> Any:
    return results[-1] if results[-1].dim() == 4 else None


def _broadcasts(x: torch.Tensor, other: torch.Tensor) -> bool:
    return x.dim() == other.dim() and all(a == b or 1 in (a, b) for a, b in zip(x.shape, other.shape))


ACTIVATIONS = {
    "relu": F.relu,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "mish": F.mish,
    "softmax": lambda x: F.softmax(x, 1),
    "elu": F.elu,
}
