"""Networks that PyTorch has quantised compute what they do there, to the step."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx
from torch.nn import functional as F

import tvm_passes
from frontends import from_pytorch
from frontends.errors import ImportFailure

IMAGES = torch.rand((4, 1, 3, 12, 10), generator=torch.Generator().manual_seed(0))


class Quantised(nn.Module):
    """A convolution, and an operator behind it."""

    def __init__(self, behind):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.behind = behind

    def forward(self, x):
        return self.behind(self.conv(x))


def quantised(behind):
    torch.manual_seed(0)
    prepared = quantize_fx.prepare_fx(
        Quantised(behind).eval(), get_default_qconfig_mapping("fbgemm"), (IMAGES[0],)
    )
    for image in IMAGES:
        prepared(image)
    return quantize_fx.convert_fx(copy.deepcopy(prepared))


BEHIND = {
    "nothing": nn.Identity(),
    "average": nn.AvgPool2d(3, 2),
    "average of a padded image": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average of all": nn.AdaptiveAvgPool2d(1),
    "average of parts": nn.AdaptiveAvgPool2d((3, 2)),
    "mean": lambda x: x.mean((2, 3)),
    "mean of all": torch.mean,
    "largest": nn.MaxPool2d(2),
    "nearest, by scale": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "nearest, by size": lambda x: F.interpolate(x, size=(15, 21), mode="nearest"),
    "linear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "relu": lambda x: torch.relu(x[:, ::2]),
    "sigmoid": torch.sigmoid,
    "joined": lambda x: torch.cat([x[:, :3], x[:, 5:]], 1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BEHIND)
def test_an_operator_of_quantised_numbers(name):
    model = quantised(BEHIND[name])
    mod, params = from_pytorch(model, IMAGES[0])
    found = np.asarray(tvm_passes.runtime.compile(mod, "llvm", params=params)(IMAGES[0].numpy()))
    expected = model(IMAGES[0]).numpy()
    step = float(model.conv.scale)
    np.testing.assert_allclose(found, expected, atol=1.01 * step)
    assert abs((found - expected).mean()) < step / 4  # not all cut


@pytest.mark.filterwarnings("ignore")
def test_an_average_that_counts_padding_is_refused():
    with pytest.raises(ImportFailure, match="give count_include_pad=False, or dequantize before"):
        from_pytorch(quantised(nn.AvgPool2d(3, 2, 1)), IMAGES[0])
