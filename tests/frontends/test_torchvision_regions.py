"""torchvision's pooling of regions and deformable convolution, as its own tests call them."""

import numpy as np
import pytest
import torch
from torchvision import ops

from frontends import from_pytorch
from tests.helpers import run
from tvm_passes import default_pipeline

REGIONS = torch.tensor(  # the image of each, then x1, y1, x2, y2
    [
        [0, 0, 0, 9, 9],
        [0, 0, 5, 4, 9],
        [0, 5, 5, 9, 9],
        [1, 0, 0, 9, 9],
        [1, 4, 4, 4, 4],  # a point
        [0, 2, 7, 8, 7],  # a line
        [1, 7, 8, 3, 2],  # the wrong way round
        [0, -5, -6, 4, 3],  # across a corner
        [1, 6, 7, 25, 30],
        [0, -30, -20, -10, -12],  # outside
        [1, 40, 3, 60, 9],
        [0, -1, -1, 10, 10],
        [1, 2.499, 3.501, 6.5, 7.5],
        [0, -0.5, 8.5, 9.5, 9.49],
    ],
    dtype=torch.float32,
)
BOXES = [REGIONS[:3, 1:], REGIONS[3:4, 1:]]


class Called(torch.nn.Module):
    def __init__(self, function, options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *tensors):
        return self.function(*tensors, **self.options)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["llvm", "cuda"])
def assert_equal(request):
    """Asserts that the import computes on a target what torchvision does."""
    cuda = request.getfixturevalue("emulated_cuda") if request.param == "cuda" else None

    def check(function, tensors, **options):
        model = function if isinstance(function, torch.nn.Module) else Called(function, options)
        with torch.no_grad():
            expected = model(*tensors).numpy()
        mod, params = from_pytorch(model, tensors)
        mod = default_pipeline()(mod)
        arrays = [each.numpy() for each in (*tensors, *params.values())]
        (found,) = run(mod, *arrays) if cuda is None else cuda.run_relay(mod, *arrays)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    return check


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("size, scale", [(5, 1.0), ((2, 3), 0.5)])
def test_roi_align(assert_equal, aligned, sampling_ratio, size, scale):
    options = {"spatial_scale": scale, "sampling_ratio": sampling_ratio, "aligned": aligned}
    assert_equal(ops.roi_align, (numbers(2, 3, 10, 10), REGIONS), output_size=size, **options)


@pytest.mark.parametrize("size, scale", [(5, 1.0), ((2, 3), 0.5)])
def test_roi_pool(assert_equal, size, scale):
    assert_equal(ops.roi_pool, (numbers(2, 3, 10, 10), REGIONS), output_size=size, spatial_scale=scale)


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("size, scale", [(3, 1.0), ((2, 3), 0.5)])
def test_ps_roi_align(assert_equal, sampling_ratio, size, scale):
    """Where it takes no sample, of a region without area, torchvision divides 0 by 0; the import gives 0."""

    def pooled(image, regions):
        return ops.ps_roi_align(image, regions, size, scale, sampling_ratio)

    image = numbers(2, 18, 10, 10)
    no_area = (REGIONS[:, 3:] <= REGIONS[:, 1:3]).any(1)
    is_nan = torch.isnan(pooled(image, REGIONS)).flatten(1).all(1)
    assert (is_nan <= (no_area & (sampling_ratio == -1))).all()
    assert_equal(lambda image, regions: pooled(image, regions).nan_to_num(), (image, REGIONS))


@pytest.mark.parametrize("size, scale", [(3, 1.0), ((2, 3), 0.5)])
def test_ps_roi_pool(assert_equal, size, scale):
    assert_equal(ops.ps_roi_pool, (numbers(2, 18, 10, 10), REGIONS), output_size=size, spatial_scale=scale)


@pytest.mark.parametrize(
    "pool",
    [
        ops.RoIAlign(3, 0.5, 2, aligned=True),
        ops.RoIPool(3, 0.5),
        ops.PSRoIAlign(3, 0.5, 2),
        ops.PSRoIPool(3, 0.5),
    ],
    ids=lambda pool: type(pool).__name__,
)
def test_boxes_of_each_image_and_an_image_that_is_not_contiguous(assert_equal, pool):
    def pooled(image, *boxes):
        return pool(image.permute(0, 1, 3, 2), list(boxes))

    assert_equal(pooled, (numbers(2, 9, 10, 8), *BOXES))


CONVOLUTIONS = {  # groups, groups of offsets, and the size of the kernel, stride, padding, dilation
    "of torchvision's tests": (2, 3, (3, 2), (2, 1), (1, 0), (2, 1)),
    "one group": (1, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    "a group of offsets for each channel": (1, 6, (1, 1), (1, 1), (0, 0), (1, 1)),
    "a convolution for each channel": (6, 2, (3, 3), (1, 2), (2, 2), (2, 2)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("is_masked", [False, True], ids=["v1", "v2"])
def test_deform_conv2d(assert_equal, case, is_masked):
    """Offsets that point outside, by a fraction and far away, and at whole pixels."""
    groups, offset_groups, kernel, *options = CONVOLUTIONS[case]
    stride, padding, dilation = options
    rows, columns = (
        (length + 2 * pad - by * (taps - 1) - 1) // step + 1
        for length, pad, by, taps, step in zip((6, 5), padding, dilation, kernel, stride)
    )
    taps = kernel[0] * kernel[1]
    offset = numbers(3, 2 * offset_groups * taps, rows, columns, seed=1) * 2
    offset[0, :, 0], offset[1, :, -1], offset[2, :, 0] = 50, -50, offset[2, :, 0].round()
    mask = torch.sigmoid(numbers(3, offset_groups * taps, rows, columns, seed=2))
    weight, bias = numbers(6, 6 // groups, *kernel, seed=3), numbers(6, seed=4)

    def convolved(image, offset, mask):
        how = {"stride": stride, "padding": padding, "dilation": dilation}
        return ops.deform_conv2d(image, offset, weight, bias, mask=mask if is_masked else None, **how)

    assert_equal(convolved, (numbers(3, 6, 6, 5), offset, mask))
