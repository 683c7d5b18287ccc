"""RestoreWarpAffine: affine grids that an image is sampled at, and what looks like them."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from frontends import from_pytorch
from tests.helpers import apply, assert_no_second_change, module, ops, refusals, run
from tvm_passes import RestoreWarpAffine, default_pipeline

from tvm import relay

NAME = "topi_ext.warp_affine"
MATRICES = torch.tensor([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.2]], [[-0.4, 0.0, 0.1], [0.3, 0.7, 0.9]]])


class Warp(torch.nn.Module):
    def __init__(self, size, of_grid, of_sample, **options):
        super().__init__()
        self.size, self.corners, self.options = size, (of_grid, of_sample), options

    def forward(self, image, theta):
        shape = [*image.shape[:2], *self.size]
        grid = F.affine_grid(theta, shape, align_corners=self.corners[0])
        return F.grid_sample(image, grid, align_corners=self.corners[1], **self.options)


@pytest.mark.parametrize("size", [(16, 18), (1, 5), (7, 1)])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("of_sample", [False, True])
@pytest.mark.parametrize("of_grid", [False, True])
def test_restored(of_grid, of_sample, padding, size):
    model = Warp(size, of_grid, of_sample, padding_mode=padding)
    inputs = torch.rand(2, 3, 11, 13), MATRICES
    after = default_pipeline()(from_pytorch(model, inputs)[0])
    assert ops(after).count(NAME) == 1 and not {"image.grid_sample", "nn.batch_matmul"} & set(ops(after))
    (found,) = run(after, *(each.numpy() for each in inputs))
    np.testing.assert_allclose(found, model(*inputs), rtol=1e-4, atol=1e-4)
    assert_no_second_change(RestoreWarpAffine(), after)


def test_nearest_is_refused():
    model = Warp((16, 18), False, False, mode="nearest")
    mod = from_pytorch(model, (torch.rand(2, 3, 11, 13), MATRICES))[0]
    after, report = apply(RestoreWarpAffine(), mod)
    assert NAME not in ops(after)
    assert refusals(report) == ["nearest rounds to other pixels where a point is between two"]


def warp_by_hand(points=None, theta=(1, 2, 3), image="float32", axes=(0, 3, 1, 2)):
    x, y = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 4))
    points = np.stack([x, y, np.ones((4, 5))], -1) if points is None else points(x, y)
    image, theta = relay.var("image", shape=(1, 3, 8, 8), dtype=image), relay.var("theta", shape=theta)
    grid = relay.nn.batch_matmul(relay.const(points.reshape(1, 20, 3).astype("float32")), theta)
    grid = relay.transpose(relay.reshape(grid, (1, 4, 5, 2)), axes)
    return module(image, theta, relay.image.grid_sample(image, grid))


@pytest.mark.parametrize("axes", [(0, 3, 1, 2), (0, -1, 1, 2)], ids=str)
def test_by_hand(axes):
    assert NAME in ops(apply(RestoreWarpAffine(), warp_by_hand(axes=axes))[0])


@pytest.mark.parametrize(
    "points",
    [
        lambda x, y: np.stack([y, x, x * 0 + 1], -1),
        lambda x, y: np.stack([x, y, x * 0 + 2], -1),
        lambda x, y: np.stack([x, y**3, x * 0 + 1], -1),
        lambda x, y: np.stack([x + 1e-3 * y, y, x * 0 + 1], -1),
    ],
    ids=["swapped", "other constant", "uneven", "sheared"],
)
def test_other_points_are_refused(points):
    after, report = apply(RestoreWarpAffine(), warp_by_hand(points))
    assert NAME not in ops(after)
    assert refusals(report) == ["the points are not those of all pixels, in order"]
