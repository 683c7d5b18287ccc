"""kornia's geometry, called as its documentation and tests call it: equal to torch, or refused for a reason.

What is an affine warp becomes `topi_ext.warp_affine`, what is a homography `topi_ext.warp_perspective`.
"""

import warnings

import numpy as np
import pytest
import torch

from frontends import ImportFailure, from_pytorch
from tests.helpers import ops, runner
from tvm_passes import default_pipeline

kornia = pytest.importorskip("kornia")
geometry, transform = kornia.geometry, kornia.geometry.transform

AFFINE, PROJECTIVE = "topi_ext.warp_affine", "topi_ext.warp_perspective"
SAMPLE = "image.grid_sample"
IMAGE = torch.rand(2, 3, 11, 14, generator=torch.Generator().manual_seed(0))
ANGLES = torch.tensor([30.0, -50.0])
MATRICES = torch.tensor([[[0.9, 0.2, 1.3], [-0.1, 1.1, -0.7]], [[0.7, -0.4, 2.0], [0.3, 0.8, -1.0]]])
LAST_ROWS = torch.tensor([[[0.01, 0.02, 1.0]], [[-0.01, 0.005, 1.1]]])
HOMOGRAPHIES = torch.cat([MATRICES, LAST_ROWS], 1)
OF_UNITS = torch.tensor(  # from -1 to 1
    [
        [[0.9, 0.2, 0.1], [-0.1, 1.1, -0.2], [0.1, 0.2, 1.0]],
        [[0.7, -0.4, 0.3], [0.3, 0.8, -0.1], [-0.1, 0.05, 1.1]],
    ]
)
BOXES = torch.tensor([[[1.0, 1], [8, 1], [8, 7], [1, 7]], [[2, 3], [9, 3], [9, 9], [2, 9]]])
CORNERS = torch.tensor([[[0.0, 0], [7, 0], [7, 6], [0, 6]]]).repeat(2, 1, 1)
CAMERA = torch.tensor([[[10.0, 0, 7], [0, 9, 5], [0, 0, 1]]]).repeat(2, 1, 1)
DISTORTION = torch.tensor([[0.1, -0.05, 0.01, 0.02]]).repeat(2, 1)
PADDINGS = [("zeros", True), ("border", False), ("reflection", True), ("reflection", False)]


def seeded(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


class Called(torch.nn.Module):
    def __init__(self, function, options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *tensors):
        return self.function(*tensors, **self.options)


def imported(function, tensors, options):
    model = function if isinstance(function, torch.nn.Module) else Called(function, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kornia checks its arguments in Python
        mod, params = from_pytorch(model.eval(), tensors)
    assert not params
    return model(*tensors), default_pipeline()(mod)


def assert_equal(function, tensors, options):
    """Assert that numbers are equal, and give the names of the operators that warp and sample."""
    expected, mod = imported(function, tensors, options)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    found = runner(mod)(*(each.numpy() for each in tensors))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)
    return [name for name in ops(mod) if name in (AFFINE, PROJECTIVE, SAMPLE)]


AFFINE_WARPS = {
    **{
        f"warp_affine {padding} align_corners={corners}": (
            transform.warp_affine,
            (IMAGE, MATRICES),
            {"dsize": (9, 12), "padding_mode": padding, "align_corners": corners},
        )
        for padding, corners in PADDINGS
    },
    "affine": (transform.affine, (IMAGE, MATRICES), {}),
    "rotate": (transform.rotate, (IMAGE, ANGLES), {}),
    "rotate around a point": (transform.rotate, (IMAGE, ANGLES, torch.tensor([[3.0, 4], [5, 2]])), {}),
    "scale": (transform.scale, (IMAGE, torch.tensor([[0.5, 1.2], [2.0, 1.5]])), {}),
    "shear": (transform.shear, (IMAGE, torch.tensor([[0.5, 0.2], [-0.3, 0.1]])), {"padding_mode": "border"}),
    "translate": (transform.translate, (IMAGE, torch.tensor([[0.5, 2], [-3, 1]])), {}),
    "Rotate": (transform.Rotate(torch.tensor([20.0])), (IMAGE,), {}),
    "center_crop": (transform.center_crop, (IMAGE,), {"size": (5, 6)}),
    "crop_and_resize": (transform.crop_and_resize, (IMAGE, BOXES), {"size": (5, 6)}),
    "crop_by_boxes": (transform.crop_by_boxes, (IMAGE, BOXES, CORNERS), {}),
    "crop_by_transform_mat": (
        transform.crop_by_transform_mat,
        (IMAGE, torch.cat([MATRICES, torch.tensor([[[0.0, 0, 1]]]).repeat(2, 1, 1)], 1)),
        {"out_size": (5, 6)},
    ),
}


@pytest.mark.parametrize("case", AFFINE_WARPS)
def test_affine_warps(case):
    assert assert_equal(*AFFINE_WARPS[case]) == [AFFINE]


def test_filled_around_the_image():
    """kornia warps a mask, too."""
    options = {"dsize": (9, 12), "padding_mode": "fill", "fill_value": torch.tensor([0.1, 0.2, 0.3])}
    assert assert_equal(transform.warp_affine, (IMAGE, MATRICES), options) == [AFFINE, AFFINE]


SAMPLES = {
    **{
        f"warp_affine {mode}": (
            transform.warp_affine,
            (IMAGE, MATRICES + 0.013),  # no point is as near to one pixel as to another
            {"dsize": (9, 12), "mode": mode},
        )
        for mode in ("nearest", "bicubic")
    },
    "remap": (transform.remap, (IMAGE, seeded(2, 9, 12) * 14, seeded(2, 9, 12) * 11), {}),
    "remap of units": (
        transform.remap,
        (IMAGE, seeded(2, 9, 12) * 3 - 1.5, seeded(2, 9, 12) * 3 - 1.5),
        {"normalized_coordinates": True, "padding_mode": "reflection", "align_corners": True},
    ),
    "elastic_transform2d": (
        transform.elastic_transform2d,
        (IMAGE, seeded(2, 2, 11, 14) * 2 - 1),
        {"kernel_size": (5, 5), "sigma": (2.0, 2.0)},
    ),
    "warp_image_tps": (
        transform.warp_image_tps,
        (IMAGE, seeded(2, 5, 2), seeded(2, 5, 2) * 0.1, seeded(2, 3, 2)),
        {},
    ),
    "undistort_image": (geometry.undistort_image, (IMAGE, CAMERA, DISTORTION), {}),
}


@pytest.mark.parametrize("case", SAMPLES)
def test_samples(case):
    assert assert_equal(*SAMPLES[case]) == [SAMPLE]


HOMOGRAPHIES_OF = {
    **{
        f"warp_perspective {padding} align_corners={corners}": (
            transform.warp_perspective,
            (IMAGE, HOMOGRAPHIES),
            {"dsize": (9, 12), "padding_mode": padding, "align_corners": corners},
        )
        for padding, corners in PADDINGS
    },
    "homography_warp": (transform.homography_warp, (IMAGE, OF_UNITS), {"dsize": (9, 12)}),
    "homography_warp of pixels": (
        transform.homography_warp,
        (IMAGE, HOMOGRAPHIES),
        {"dsize": (9, 12), "normalized_homography": False},
    ),
    "HomographyWarper": (transform.HomographyWarper(9, 12), (IMAGE, OF_UNITS), {}),
}


@pytest.mark.parametrize("case", HOMOGRAPHIES_OF)
def test_homographies(case):
    assert assert_equal(*HOMOGRAPHIES_OF[case]) == [PROJECTIVE]


OTHERS = {
    "resize": (transform.resize, (IMAGE,), {"size": (7, 20)}),
    "resize antialias": (transform.resize, (IMAGE,), {"size": (5, 8), "antialias": True}),
    "resize nearest": (transform.resize, (IMAGE,), {"size": (7, 20), "interpolation": "nearest"}),
    "rescale": (transform.rescale, (IMAGE,), {"factor": (0.5, 1.7)}),
    "hflip": (transform.hflip, (IMAGE,), {}),
    "vflip": (transform.vflip, (IMAGE,), {}),
    "rot180": (transform.rot180, (IMAGE,), {}),
    "pyrdown": (transform.pyrdown, (IMAGE,), {}),
    "pyrup": (transform.pyrup, (IMAGE,), {}),
    "get_rotation_matrix2d": (
        transform.get_rotation_matrix2d,
        (torch.tensor([[4.0, 5], [3, 4]]), ANGLES, torch.tensor([[1.0, 1.2], [0.5, 0.6]])),
        {},
    ),
    "get_perspective_transform": (
        transform.get_perspective_transform,
        (BOXES, CORNERS + seeded(2, 4, 2)),
        {},
    ),
    "invert_affine_transform": (transform.invert_affine_transform, (MATRICES,), {}),
    "get_tps_transform": (transform.get_tps_transform, (seeded(1, 5, 2), seeded(1, 5, 2) + 1), {}),
    "warp_points_tps": (
        transform.warp_points_tps,
        (seeded(2, 4, 2), seeded(2, 5, 2), seeded(2, 5, 2) * 0.1, seeded(2, 3, 2)),
        {},
    ),
    "transform_points": (geometry.transform_points, (HOMOGRAPHIES, seeded(2, 5, 2)), {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others(case):
    assert assert_equal(*OTHERS[case]) == []


AUGMENTATIONS = {
    "hflip": lambda a: a.RandomHorizontalFlip(p=1.0),
    "vflip": lambda a: a.RandomVerticalFlip(p=1.0),
    "resize": lambda a: a.Resize((5, 6)),
    "normalize": lambda a: a.Normalize(torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])),
    "pad": lambda a: a.PadTo((20, 20)),
}


@pytest.mark.parametrize("case", AUGMENTATIONS)
def test_augmentations_without_chance(case):
    assert assert_equal(AUGMENTATIONS[case](kornia.augmentation), (IMAGE,), {}) == []


def test_crop_by_indices_is_of_the_boxes_of_the_example():
    """kornia takes them as numbers of Python."""
    tensors = IMAGE, BOXES[:1].long().repeat(2, 1, 1)
    with pytest.warns(UserWarning, match="is fixed to its value for the example inputs"):
        mod, _ = from_pytorch(Called(transform.crop_by_indices, {}), tensors)
    (found,) = runner(mod)(*(each.numpy() for each in tensors))
    np.testing.assert_array_equal(found, transform.crop_by_indices(*tensors).numpy())


REFUSED = {
    "find_homography_dlt": (
        geometry.find_homography_dlt,
        (seeded(1, 6, 2), seeded(1, 6, 2) + 1),
        "there is no converter for aten::linalg_lu_factor_ex",
    ),
    "CenterCrop": (kornia.augmentation.CenterCrop((5, 6)), (IMAGE,), "torch cannot trace CenterCrop"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    function, tensors, reason = REFUSED[case]
    with pytest.raises(ImportFailure, match=reason) as refused:
        imported(function, tensors, {})
    assert "\n" not in str(refused.value)
