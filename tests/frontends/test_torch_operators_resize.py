"""Converters of `interpolate`: the numbers of torch."""

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.torch_functions import assert_right
from tests.frontends.torch_models import assert_all, assert_computes


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolate_by_the_scale_that_is_given(mode):
    scales = 1.5, 1.3, 0.7, 0.5, 2, (2.0, 0.3)
    assert_all(
        [lambda x, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode) for scale in scales],
        torch.randn(1, 2, 7, 9),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(1, 2, 3), (1, 2, 2, 3), (2, 5, 3, 3), (1, 1, 3, 110), (1, 1, 2, 2, 3)], ids=str
)
def test_interpolate_to_as_many_elements_or_twice_as_many(shape, dtype):
    """PyTorch may copy, and take no notice of the scale."""
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(shape) - 2]
    options = [{"scale_factor": scale, "mode": mode} for scale in (1.2, 2.2) for mode in ("nearest", linear)]
    if len(shape) == 4:
        options += [
            {"scale_factor": 1.2, "mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")
        ]
        options += [{"scale_factor": (1.2, 2), "mode": mode} for mode in ("nearest-exact", "bicubic")]
    given = torch.randn(shape, dtype=dtype)
    assert_all([lambda x, kw=kw: F.interpolate(x, **kw) for kw in options], given)


def test_interpolate_to_a_size():
    options = [
        {"size": (1, 1), "mode": "bilinear", "align_corners": True},
        {"size": (1, 20), "mode": "bicubic", "align_corners": True},
        {"size": (3, 20), "mode": "bicubic"},
        {"size": (41, 41), "mode": "nearest"},
        {"size": (3, 20), "mode": "bilinear", "antialias": True},
        {"size": (3, 2), "mode": "bicubic", "antialias": True},
    ]
    assert_all([lambda x, kw=kw: F.interpolate(x, **kw) for kw in options], torch.randn(1, 2, 40, 9))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8])
def test_interpolate_keeps_the_type(dtype):
    modes = ["nearest"] if dtype == torch.uint8 else ["nearest", "bilinear"]
    assert_all(
        [lambda x, mode=mode: F.interpolate(x, scale_factor=1.3, mode=mode) for mode in modes],
        (torch.rand(1, 2, 5, 6) * 9).to(dtype),
        atol=1e-2 if dtype == torch.float16 else 1e-5,
    )


def test_interpolate_as_scripted():
    """The script computes the sizes of the result itself, with loops and branches."""
    assert_computes(torch.jit.script(_Scaled()), torch.randn(1, 2, 7, 9), rtol=1e-4, atol=1e-5)


class _Scaled(torch.nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=1.3, mode="bilinear")


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True], ids=["", "antialias"])
def test_resized_bytes_are_those_of_torch(mode, antialias):
    """Bit for bit, also of more than four channels, and along one axis: torch has other kernels for them."""
    options = [{"size": (40, 64)}, {"size": (5, 3)}, {"size": (23, 17)}, {"scale_factor": 1.3}]
    options += [] if antialias else [{"size": (30, 45), "align_corners": True}]
    assert_right(
        {
            f"{channels} channels by {each}": lambda x, each=each, channels=channels: F.interpolate(
                x[:, :channels], mode=mode, antialias=antialias, **each
            )
            for each in options
            for channels in (3, 5)
        },
        torch.randint(0, 256, (1, 5, 23, 31), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        rtol=0,
        atol=0,
    )
