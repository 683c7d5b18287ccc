"""What takes the result of a convolution takes it in any layout that TVM gives the convolution on a CPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import frontends
from tvm_passes import default_pipeline, runtime

IMAGE = (3, 8, 4, 6)


def along(axis):
    return [
        lambda y: y.sum(axis),
        lambda y: y.mean(axis, keepdim=True),
        lambda y: y.max(axis)[0],
        lambda y: y.argmax(axis).float(),
        lambda y: y.softmax(axis),
        lambda y: y.cumsum(axis),
        lambda y: torch.flip(y, [axis]),
        lambda y: y.roll(1, axis),
        lambda y: y.unsqueeze(axis),
        lambda y: torch.cat([y, y * 2], axis),
        lambda y: torch.stack([y, y * 2], axis),
        lambda y: y.narrow(axis, 0, 1),
        lambda y: y.narrow(axis, 0, 1).squeeze(axis),
        lambda y: y.select(axis, 0),
        lambda y: y.sort(axis)[0],
        lambda y: y.topk(1, axis)[0],
        lambda y: y.split(1, axis)[0],
        lambda y: y.chunk(2, axis)[0],
        lambda y: y.unbind(axis)[0],
        lambda y: y.repeat_interleave(2, axis),
        lambda y: y.logsumexp(axis),
        lambda y: y.std(axis),
        lambda y: F.normalize(y, dim=axis),
    ]


def whole():
    return [
        lambda y: y.squeeze(),
        lambda y: y.flatten(1),
        lambda y: y.flatten(2).transpose(1, 2),
        lambda y: y.permute(0, 2, 3, 1),
        lambda y: y.reshape(3, -1, 2, 12),
        lambda y: y[:, :, ::2, 1:-1],
        lambda y: y[:, :, [0, 2]],
        lambda y: y[torch.tensor([0, 1])],
        lambda y: y.mean((2, 3)),
        lambda y: y.amax((0, 3)),
        lambda y: y * y.mean(1, keepdim=True),
        lambda y: y + torch.arange(float(y.shape[1]))[:, None, None],
        lambda y: y * torch.arange(6.0),
        lambda y: y + torch.ones(2, 3, y.shape[1], 4, 6),
        lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"),
        lambda y: F.pad(y, (0, 0, 0, 0, 1, 1)),
        lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"),
        lambda y: F.pixel_unshuffle(y, 2),
        lambda y: F.layer_norm(y, y.shape[1:]),
        lambda y: F.group_norm(y, 1),
        lambda y: F.instance_norm(y),
        lambda y: F.prelu(y, torch.full((y.shape[1],), 0.3)),
        lambda y: F.adaptive_avg_pool2d(y, (2, 3)),
        lambda y: F.avg_pool2d(y, 3, 2, 1),
        lambda y: F.unfold(y, 2),
        lambda y: y.matmul(torch.ones(6, 2)),
        lambda y: F.linear(y.permute(0, 2, 3, 1), torch.ones(2, y.shape[1])),
        lambda y: torch.bmm(y.flatten(2), y.flatten(2).transpose(1, 2)),
        lambda y: F.grid_sample(y, torch.zeros(3, 2, 2, 2), align_corners=False),
        lambda y: F.conv2d(y, torch.ones(y.shape[1], 1, 3, 3), groups=y.shape[1]),
        lambda y: F.conv_transpose2d(y, torch.ones(y.shape[1], 2, 2, 2), stride=2),
        lambda y: torch.gather(y, 1, torch.zeros(3, 1, 4, 6, dtype=torch.long)),
        lambda y: torch.scatter(y, 2, torch.zeros(3, 1, 1, 6, dtype=torch.long), 1.0),
        lambda y: torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1),
    ]


class Behind(torch.nn.Module):
    def __init__(self, channels, functions):
        super().__init__()
        self.convolution = torch.nn.Conv2d(IMAGE[1], channels, 1)
        self.functions = functions

    def forward(self, x):
        y = self.convolution(x)
        return tuple(function(y) * 2 for function in self.functions)


@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("functions", [along(1), along(2), along(-3), whole()], ids=["1", "2", "-3", "whole"])
def test_what_takes_a_convolution(channels, functions):
    torch.manual_seed(0)
    model, image = Behind(channels, functions).eval(), torch.randn(IMAGE)
    with torch.no_grad():
        expected = model(image)
    mod, params = frontends.from_pytorch(model, image)
    found = list(runtime.compile(default_pipeline()(mod), "llvm", params)(image.numpy()).values())
    assert len(found) == len(expected)
    for place, (one, other) in enumerate(zip(found, expected)):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"function {place}")
