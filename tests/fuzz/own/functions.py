"""What people compute of a feature map: functions of PyTorch one behind another, most behind a convolution.

TVM chooses the layout of a convolution on a CPU, fuses what follows, and moves transposes through it: each
function has to stand that wherever it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

Function = Callable[[torch.Tensor, int], torch.Tensor]
MAX_ELEMENTS = 100_000


def _first(y: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.zeros_like(y.narrow(axis, 0, 1), dtype=torch.int64)


FUNCTIONS: dict[str, Function] = {
    "sum": lambda y, axis: y.sum(axis),
    "mean": lambda y, axis: y.mean(axis, keepdim=True),
    "max": lambda y, axis: y.max(axis)[0],
    "amin": lambda y, axis: y.amin(axis, keepdim=True),
    "softmax": lambda y, axis: y.softmax(axis),
    "logsumexp": lambda y, axis: y.logsumexp(axis),
    "cumsum": lambda y, axis: y.cumsum(axis),
    "norm": lambda y, axis: y.norm(dim=axis),
    "var": lambda y, axis: y.var(axis),
    "normalize": lambda y, axis: F.normalize(y, dim=axis),
    "flip": lambda y, axis: y.flip(axis),
    "roll": lambda y, axis: y.roll(1, axis),
    "unsqueeze": lambda y, axis: y.unsqueeze(axis),
    "squeeze": lambda y, axis: y.squeeze(axis),
    "cat": lambda y, axis: torch.cat([y, y * 2], axis),
    "stack": lambda y, axis: torch.stack([y, -y], axis),
    "narrow": lambda y, axis: y.narrow(axis, 0, (y.shape[axis] + 1) // 2),
    "select": lambda y, axis: y.select(axis, -1),
    "unbind": lambda y, axis: y.unbind(axis)[0],
    "split": lambda y, axis: y.split(2, axis)[-1],
    "chunk": lambda y, axis: y.chunk(2, axis)[0],
    "sort": lambda y, axis: y.sort(axis)[0],
    "topk": lambda y, axis: y.topk(1, axis)[0],
    "repeat_interleave": lambda y, axis: y.repeat_interleave(2, axis),
    "every other": lambda y, axis: y.movedim(axis, 0)[::2].movedim(0, axis),
    "index_select": lambda y, axis: y.index_select(axis, torch.tensor([0, 0])),
    "gather": lambda y, axis: y.gather(axis, _first(y, axis)),
    "scatter": lambda y, axis: y.scatter(axis, _first(y, axis), 1.0),
    "movedim": lambda y, axis: y.movedim(axis, 0),
    "last": lambda y, axis: y.movedim(axis, -1),
    "transpose": lambda y, axis: y.transpose(axis, -1),
    "flatten": lambda y, axis: y.flatten(axis if axis >= 0 else 0),
    "reshape": lambda y, axis: y.reshape(y.shape[axis], -1),
    "pad": lambda y, axis: F.pad(y, (1, 0)),
    "affine": lambda y, axis: y * torch.arange(1.0, y.shape[axis] + 1).view(-1, *[1] * (-axis % y.dim() - 1)),
    "attend": lambda y, axis: y * y.mean(axis, keepdim=True).sigmoid(),
    "centre": lambda y, axis: y - y.amax(axis, keepdim=True),
    "where": lambda y, axis: torch.where(y > 0, y, y.mean(axis, keepdim=True)),
    "linear": lambda y, axis: F.linear(y, torch.ones(3, y.shape[-1], dtype=y.dtype)),
    "product": lambda y, axis: y @ y.transpose(-1, -2),
    "relu": lambda y, axis: y.relu(),
    "clamp": lambda y, axis: y.clamp(-0.5, 0.5),
    "half": lambda y, axis: y.half().to(y.dtype),
    "integers": lambda y, axis: (y * 4).to(torch.int32).to(y.dtype),
    "pool": lambda y, axis: F.max_pool2d(y, 2) if y.dim() == 4 else y,
    "average": lambda y, axis: F.adaptive_avg_pool2d(y, 1) if y.dim() == 4 else y,
    "resize": lambda y, axis: F.interpolate(y, scale_factor=2) if y.dim() == 4 else y,
    "unshuffle": lambda y, axis: F.pixel_unshuffle(y, 2) if y.dim() == 4 else y,
    "layer_norm": lambda y, axis: F.layer_norm(y, y.shape[-1:]),
    "group_norm": lambda y, axis: F.group_norm(y, 1),
}


def descriptions() -> st.SearchStrategy[Any]:
    step = st.tuples(st.sampled_from(sorted(FUNCTIONS)), st.sampled_from([1, 1, 0, 2, 3, -1, -2, -3]))
    return st.fixed_dictionaries(
        {
            "shape": st.sampled_from([(2, 8, 4, 6), (1, 4, 6, 4), (3, 16, 2, 2), (1, 3, 8, 8)]),
            "convolution": st.sampled_from([16, 16, 1, 3, None]),  # how many channels it has
            "dtype": st.sampled_from(["float32"] * 6 + ["float16"]),
            "steps": st.lists(step, min_size=1, max_size=4),
            "again": st.sampled_from([None, None, 3]),  # a convolution behind them
        }
    )


def build(parts: Any) -> tuple[nn.Module, list[np.ndarray]]:
    dtype = getattr(torch, parts["dtype"])
    image = torch.randn(parts["shape"])
    network = Chain(parts)
    with torch.no_grad():
        network.eval()(image)  # makes the convolutions
    return network.to(dtype), [image.to(dtype).numpy()]


class Chain(nn.Module):
    def __init__(self, parts: Any) -> None:
        super().__init__()
        self._parts = parts
        channels, count = parts["shape"][1], parts["convolution"]
        self.first = nn.Conv2d(channels, count, 1) if count else nn.Identity()
        self.last: nn.Module = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for name, axis in self._parts["steps"]:
            if not -x.dim() <= axis < x.dim() or x.dim() < 2:
                continue
            after = FUNCTIONS[name](x, axis)
            if 0 < after.numel() <= MAX_ELEMENTS:
                x = after
        if self._parts["again"] and x.dim() == 4:
            if isinstance(self.last, nn.Identity):
                self.last = nn.Conv2d(x.shape[1], self._parts["again"], 1)
            x = self.last(x)
        return x
