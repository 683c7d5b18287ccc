"""Converters of neural-network operators: the numbers of torch, or a refusal."""

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.test_from_pytorch import assert_computes


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def assert_all(functions, *tensors, rtol=1e-4, atol=1e-5):
    """Assert that the functions of the tensors compute what they do in torch, imported as one model."""
    return assert_computes(_Each(functions), *tensors, rtol=rtol, atol=atol)


class _Each(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *tensors):
        return [function(*tensors) for function in self.functions]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolate_by_the_scale_that_is_given(mode):
    scales = 1.5, 1.3, 0.7, 0.5, 2, (2.0, 0.3)
    assert_all(
        [lambda x, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode) for scale in scales],
        torch.randn(1, 2, 7, 9),
    )


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
    assert_computes(torch.jit.script(_Scaled()), torch.randn(1, 2, 7, 9))


class _Scaled(torch.nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=1.3, mode="bilinear")
