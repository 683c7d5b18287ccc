"""Random affine maps: boxes, masks and points go where their images go."""

import numpy as np
import pytest
import torch

from tests.ops.warps import random_images
from topi_ext.torch import AffineWarp, RandomAffine

ALL = {
    "degrees": 40,
    "translate": (0.1, 0.2),
    "scale": (0.7, 1.5),
    "shear": 15,
    "flip": 0.5,
    "vertical_flip": 0.5,
}
SIZE = 60, 80


def seeded(seed=0, **options):
    return RandomAffine(**options, generator=torch.Generator().manual_seed(seed))


def test_nothing_is_drawn_by_default():
    images = torch.from_numpy(random_images(3, SIZE))
    assert torch.equal(RandomAffine()(images), images)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_flips(layout):
    images = torch.from_numpy(random_images(2, SIZE, layout=layout))
    masks = torch.from_numpy(random_images(2, SIZE, 1, dtype="int64"))[:, 0]
    boxes, points = torch.tensor([[[10.0, 5, 30, 25]]] * 2), torch.tensor([[[0.5, 0.5]]] * 2)
    across, down = (layout.index(axis) for axis in "WH")
    found = RandomAffine(flip=1, layout=layout)(images, boxes, masks, points)
    expected = images.flip(across), [[[50, 5, 70, 25]]] * 2, masks.flip(2), [[[79.5, 0.5]]] * 2
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, torch.as_tensor(other, dtype=one.dtype))
    found = RandomAffine(vertical_flip=1, layout=layout)(images, boxes)
    for one, other in zip(found, (images.flip(down), [[[10, 35, 30, 55]]] * 2)):
        torch.testing.assert_close(one, torch.as_tensor(other, dtype=one.dtype))


def blobs(points):
    """Images with a round spot at a point of each."""
    ys, xs = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    distance = (xs - points[:, 0, 0, None, None]) ** 2 + (ys - points[:, 0, 1, None, None]) ** 2
    return torch.from_numpy(np.exp(-distance / 8)[:, None].astype("float32"))


@pytest.mark.parametrize("out_size", [None, (100, 70)])
def test_points_follow_images(out_size):
    points = np.random.default_rng(0).uniform(25, 45, (50, 1, 2))
    images, moved = seeded(**ALL, out_size=out_size)(blobs(points), points=torch.from_numpy(points))
    height, width = images.shape[2:]
    ys, xs = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    weight = images[:, 0] / images[:, 0].sum((1, 2), keepdim=True)
    found = torch.stack([(weight * xs).sum((1, 2)), (weight * ys).sum((1, 2))], dim=1)
    inside = ((moved[:, 0] > 9) & (moved[:, 0] < torch.tensor([width, height]) - 9)).all(1)
    assert inside.sum() > 20
    torch.testing.assert_close(found[inside], moved[inside, 0].float(), rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_boxes_hold_masks(dtype):
    masks = torch.zeros(40, *SIZE, dtype=dtype)
    masks[:, 20:45, 30:50] = 1
    boxes = torch.tensor([[30.0, 20, 50, 45]]).expand(40, 1, 4)
    _, moved, masks = seeded(**ALL)(masks[:, None].float(), boxes, masks)
    assert masks.dtype == dtype and moved.shape == (40, 1, 4)
    for box, mask in zip(moved[:, 0], masks):
        down, across = mask.nonzero(as_tuple=True)
        held = torch.tensor([across.min(), down.min(), across.max() + 1, down.max() + 1])
        # Turned, a corner of the box may be so sharp that no pixel's centre is in its last pixel or two.
        inward = (held - box) * torch.tensor([1, 1, -1, -1])
        assert (inward > -0.5).all() and (inward < 2.5).all()


def test_scaling_is_about_the_centre():
    masks, boxes = torch.zeros(1, *SIZE, dtype=torch.uint8), torch.tensor([[[30.0, 20, 50, 40]]])
    masks[:, 20:40, 30:50] = 1
    _, moved, masks = RandomAffine(scale=(2, 2))(masks[:, None], boxes, masks)
    torch.testing.assert_close(moved, torch.tensor([[[20.0, 10, 60, 50]]]))
    assert masks[:, 10:50, 20:60].all() and masks.sum() == 40 * 40


def test_one_tensor_for_each_image():
    images = torch.from_numpy(random_images(3, SIZE))
    boxes = torch.rand(3, 5, 4) * 30 + torch.tensor([0, 0, 30, 30])
    matrices = seeded(**ALL).draw(3, SIZE, SIZE)
    warp = AffineWarp()
    _, together, points = warp(images, matrices, boxes, points=boxes[..., :2])
    _, apart, points_apart = warp(images, matrices, [*boxes], points=[*boxes[..., :2]])
    torch.testing.assert_close(torch.stack(apart), together)
    torch.testing.assert_close(torch.stack(points_apart), points)
    _, ragged = warp(images, matrices, [boxes[0, :0], boxes[1, :2], boxes[2]])
    assert [len(some) for some in ragged] == [0, 2, 5]
    torch.testing.assert_close(ragged[1], together[1, :2])
    with pytest.raises(ValueError, match="2 tensors of boxes or points for 3 images"):
        warp(images, matrices, [*boxes[:2]])


BOXES, POINTS = torch.zeros(2, 5, 4), torch.zeros(2, 5, 2)


@pytest.mark.parametrize(
    "targets, reason",
    [
        ({"boxes": torch.zeros(2, 5, 6)}, r"boxes must have the shape \(N, K, 4\), not \(2, 5, 6\)"),
        ({"boxes": BOXES[0]}, "5 tensors of boxes"),
        ({"boxes": BOXES[:, 0]}, r"boxes must have the shape \(N, K, 4\), not \(2, 4\)"),
        ({"boxes": BOXES[:1]}, "1 tensors of boxes or points for 2 images"),
        (
            {"boxes": [BOXES[0], torch.zeros(0)]},
            r"boxes must have the shape \(K, 4\) for each image, not \(0,\)",
        ),
        ({"points": [torch.zeros(3, 3)] * 2}, r"points must have the shape \(K, 2\) for each image"),
        ({"masks": torch.zeros(2, 4, 6, dtype=torch.uint8)}, r"masks of \(4, 6\) for images of \(8, 12\)"),
        ({"masks": torch.zeros(2, 1, 16, 12, dtype=torch.uint8)}, r"masks of \(16, 12\) for images"),
    ],
)
def test_targets_that_do_not_fit_the_images(targets, reason):
    """They were warped as if they did: columns were lost, and masks shifted."""
    with pytest.raises(ValueError, match=reason):
        RandomAffine()(torch.zeros(2, 3, 8, 12), **targets)


@pytest.mark.parametrize("images", [torch.zeros(3, 8, 12), [torch.zeros(3, 8, 12)]])
def test_images_that_are_none(images):
    with pytest.raises(ValueError, match="images must be a tensor of four axes, NCHW, not"):
        RandomAffine()(images)


def test_what_is_moved_away_has_no_area():
    images, boxes = torch.zeros(1, 1, *SIZE), torch.tensor([[[2.0, 2, 10, 10], [60, 40, 70, 50]]])
    matrix = torch.tensor([[[1.0, 0, -40], [0, 1, 0]]])
    _, moved, masks = AffineWarp(mask_value=255)(
        images, matrix, boxes, torch.zeros(1, *SIZE, dtype=torch.uint8)
    )
    torch.testing.assert_close(moved, torch.tensor([[[0.0, 2, 0, 10], [20, 40, 30, 50]]]))
    assert (masks[..., 40:] == 255).all() and not masks[..., :40].any()


def test_what_is_drawn():
    options = {"degrees": (10, 20), "translate": (0.1, 0.0), "scale": (0.5, 2.0), "flip": 0.3}
    matrices = seeded(**options).draw(4000, SIZE, (120, 160))
    assert torch.equal(matrices, seeded(**options).draw(4000, SIZE, (120, 160)))
    assert not torch.equal(matrices, seeded(1, **options).draw(4000, SIZE, (120, 160)))
    linear = matrices[:, :, :2]
    scale, flipped = linear.det().abs().sqrt(), linear.det() < 0
    degrees = torch.atan2(-linear[:, 0, 1], linear[:, 1, 1]).rad2deg()
    centre = (linear @ torch.tensor([39.5, 29.5]).double()) + matrices[:, :, 2]
    shift = centre - torch.tensor([79.5, 59.5])
    for drawn, least, most in ((degrees, 10, 20), (scale.log2(), -1, 1), (shift[:, 0], -16, 16)):
        assert (drawn > least - 1e-9).all() and (drawn < most + 1e-9).all()
        assert abs(drawn.mean() - (least + most) / 2) < 0.03 * (most - least)
    assert shift[:, 1].abs().max() < 1e-9
    assert abs(flipped.double().mean() - 0.3) < 0.03


def test_scale_above_0():
    with pytest.raises(ValueError, match="scale must be above 0"):
        RandomAffine(scale=(0, 1))


@pytest.mark.gpu
def test_on_gpu():
    images, masks = random_images(8, SIZE), random_images(8, SIZE, 1, dtype="int64")[:, 0]
    boxes = torch.rand(8, 5, 4) * 30 + torch.tensor([0, 0, 30, 30])
    given = torch.from_numpy(images), boxes, torch.from_numpy(masks)
    on_cpu = seeded(**ALL, mode="cv2_fixed")(*given)
    on_gpu = seeded(**ALL, mode="cv2_fixed")(*(one.cuda() for one in given))
    for one, other in zip(on_gpu, on_cpu):
        assert one.is_cuda
        torch.testing.assert_close(one.cpu(), other)
