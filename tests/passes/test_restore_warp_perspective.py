"""RestoreWarpPerspective: grids of points that a third coordinate divides, and what looks like them."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from frontends import from_pytorch
from tests.helpers import apply, assert_no_second_change, module, ops, refusals, run
from tvm_passes import RestoreWarpPerspective, default_pipeline

from tvm import relay

NAME = "topi_ext.warp_perspective"
MATRICES = torch.tensor(
    [
        [[0.9, 0.2, 0.1], [-0.1, 1.1, -0.2], [0.1, 0.2, 1.0]],
        [[0.7, -0.4, 0.3], [0.3, 0.8, -0.1], [1.0, 0.0, 1.0]],  # z is 0 at the left border
        [[1.0, 0.0, 0.3], [0.0, 1.0, 0.5], [0.0, 2.0, 0.0]],  # and here in the middle
    ]
)


class Warp(torch.nn.Module):
    """As geometry packages spell it; `by_rows` as kornia, with a copy of the matrix for each row."""

    def __init__(self, size, by_rows, **options):
        super().__init__()
        sides = ((torch.arange(n) / max(n - 1, 1) - 0.5) * 2 for n in size)  # 0 in the middle, exactly
        ys, xs = torch.meshgrid(*sides, indexing="ij")
        points = torch.stack([xs, ys, torch.ones_like(xs)], -1)
        self.register_buffer("points", points)
        self.size, self.by_rows, self.options = size, by_rows, options

    def forward(self, image, matrices):
        points = self.points.clone()[None].repeat(len(image), 1, 1, 1)
        if self.by_rows:
            matrices, points = (
                matrices.repeat_interleave(self.size[0], 0),
                points.reshape(-1, self.size[1], 3),
            )
        else:
            points = points.reshape(len(image), -1, 3)
        moved = points @ matrices.transpose(1, 2)
        z = moved[..., 2:]
        scale = torch.where(z.abs() > 1e-8, 1.0 / (z + 1e-8), torch.ones_like(z))
        grid = (moved[..., :2] * scale).reshape(len(image), *self.size, 2)
        return F.grid_sample(image, grid, **self.options)


@pytest.mark.parametrize("size", [(16, 18), (1, 5), (7, 3)])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("by_rows, corners", [(False, False), (True, True)])
def test_restored(by_rows, corners, padding, size):
    """Points on the horizon, too: there x and y are not divided."""
    model = Warp(size, by_rows, padding_mode=padding, align_corners=corners).eval()
    image = F.interpolate(torch.rand(3, 2, 4, 5), (11, 13), mode="bicubic")
    mod, params = from_pytorch(model, (image, MATRICES))
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    after, report = apply(default_pipeline(), mod)
    assert ops(after).count(NAME) == 1, refusals(report)
    assert not {"image.grid_sample", "nn.batch_matmul"} & set(ops(after))
    (found,) = run(after, image.numpy(), MATRICES.numpy())
    np.testing.assert_allclose(found, model(image, MATRICES), rtol=1e-4, atol=1e-4)
    assert_no_second_change(RestoreWarpPerspective(), after)


def warp_by_hand(points=None, h=lambda h: h, columns=(0, 2), least=1e-8, added=1e-8, one=1.0, **options):
    x, y = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 4))
    points = np.stack([x, y, np.ones((4, 5))], -1) if points is None else points(x, y)
    image, matrices = relay.var("image", shape=(2, 3, 8, 8)), relay.var("h", shape=(2, 3, 3))
    points = np.tile(points.reshape(1, 20, 3), (2, 1, 1)).astype("float32")
    product = relay.nn.batch_matmul(relay.const(points), h(matrices))
    start, end = columns
    xy = relay.strided_slice(product, [0, 0, start], [2, 20, end])
    z = relay.strided_slice(product, [0, 0, 2], [2, 20, 3])
    ones = relay.const(np.full((2, 20, 1), one, "float32"))
    scale = relay.const(1.0) / (z + relay.const(added))
    scale = relay.where(relay.abs(z) > relay.const(least), scale, ones)
    grid = relay.transpose(relay.reshape(scale * xy, (2, 4, 5, 2)), (0, 3, 1, 2))
    return module(image, matrices, relay.image.grid_sample(image, grid, **options))


def test_by_hand():
    assert NAME in ops(apply(RestoreWarpPerspective(), warp_by_hand())[0])


def test_matrices_in_another_order_are_followed():
    """They are elements of the tensor that is given, wherever they are moved."""

    def turned(h):
        return relay.transpose(relay.reshape(relay.transpose(h, (0, 2, 1)), (2, 3, 3)), (0, 2, 1))

    after = apply(RestoreWarpPerspective(), warp_by_hand(h=turned))[0]
    assert NAME in ops(after)
    arrays = np.random.default_rng(0).random((2, 3, 8, 8), "float32"), MATRICES[:2].numpy()
    np.testing.assert_allclose(run(after, *arrays)[0], run(warp_by_hand(), *arrays)[0], 1e-4, 1e-4)


DIVISOR = "the divisor is not z, or 1 where z is within 1e-08 of 0"
PLACES = "the points are not those of all pixels, in order"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "nearest"}, "nearest rounds to other pixels where a point is between two"),
        ({"least": 1e-3}, DIVISOR),
        ({"added": 1e-2}, DIVISOR),
        ({"one": 2.0}, DIVISOR),
        ({"columns": (1, 3)}, "x and y are not divided by the third coordinate"),
        ({"points": lambda x, y: np.stack([y, x, x * 0 + 1], -1)}, PLACES),
        ({"points": lambda x, y: np.stack([x, y**3, x * 0 + 1], -1)}, PLACES),
        ({"points": lambda x, y: np.stack([x, y, x * 0 + 2], -1)}, PLACES),
    ],
)
def test_what_is_refused(options, reason):
    after, report = apply(RestoreWarpPerspective(), warp_by_hand(**options))
    assert NAME not in ops(after)
    assert refusals(report) == [reason]


def test_a_matrix_for_each_row_is_refused():
    model = Warp((4, 5), by_rows=True, align_corners=False)
    image, matrices = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 3)

    class Mixed(torch.nn.Module):
        def forward(self, image, matrices):
            points = model.points.clone()[None].repeat(2, 1, 1, 1).reshape(-1, 5, 3)
            moved = points @ matrices.repeat(4, 1, 1).transpose(1, 2)  # they take turns
            z = moved[..., 2:]
            scale = torch.where(z.abs() > 1e-8, 1.0 / (z + 1e-8), torch.ones_like(z))
            return F.grid_sample(image, (moved[..., :2] * scale).reshape(2, 4, 5, 2), align_corners=False)

    after, report = apply(RestoreWarpPerspective(), from_pytorch(Mixed(), (image, matrices))[0])
    assert NAME not in ops(after)
    assert refusals(report) == ["there is not one matrix for each image"]
