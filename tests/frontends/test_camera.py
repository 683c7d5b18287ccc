"""Models fed by a camera: what torch makes of the float image, and what MMDetection's convention says."""

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from frontends import Camera, ImportFailure, MMDet, from_onnx, from_pytorch
from tests.helpers import ops, run
from tests.models.detectors import detect, share_found
from tests.models.zoo import random_image, tiny_detector
from tvm_passes import FoldPreprocessing, detection_pipeline

import tvm
from tvm import relay

HEIGHT, WIDTH = 80, 112
PREPROCESS = "topi_ext.preprocess"


class Transform(nn.Module):
    """torchvision's preprocessing, and no more."""

    def __init__(self, **options):
        super().__init__()
        self.transform = GeneralizedRCNNTransform(50, 90, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4], **options)

    def forward(self, image):
        return self.transform(list(image.unbind()) if image.dim() == 4 else [image])[0].tensors


def frames(batch=1, height=HEIGHT, width=WIDTH):
    """What a camera gives."""
    images = torch.stack([random_image(height, width, seed=seed) for seed in range(batch)])
    return (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def planes(images, channels="RGB"):
    """What torch takes of it."""
    return torch.from_numpy(images if channels == "RGB" else images[..., ::-1].copy()).permute(0, 3, 1, 2)


def through_pytorch(model, example, camera):
    mod, params = from_pytorch(model, example, camera=camera)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], params)
    return mod


def through_onnx(model, example, camera, **options):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about sizes that it takes for constant
        torch.onnx.export(model, example, file, opset_version=16, input_names=["image"], **options)
    return from_onnx(onnx.load_from_string(file.getvalue()), camera=camera)[0]


FRONTENDS = {"PyTorch": through_pytorch, "ONNX": through_onnx}


@pytest.fixture(params=FRONTENDS)
def load(request):
    return FRONTENDS[request.param]


# --- models that do it all themselves


@pytest.mark.parametrize("batch, channels", [(1, "RGB"), (1, "BGR"), (3, "BGR")])
@pytest.mark.parametrize("options", [{}, {"fixed_size": (64, 60)}])
def test_torchvisions_own_transform_is_one_operator(load, batch, channels, options):
    model, images = Transform(**options).eval(), frames(batch)
    example = planes(images, channels).float() / 255
    mod = load(model, example, Camera(HEIGHT, WIDTH, channels, batch))
    folded = FoldPreprocessing()(mod)
    assert ops(folded) == [PREPROCESS]
    np.testing.assert_allclose(run(folded, images)[0], model(example).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_of_a_image_without_a_batch_also_before_it_is_folded(channels):
    model, images = Transform().eval(), frames()
    example = planes(images, channels)[0].float() / 255
    mod = through_pytorch(model, example, Camera(HEIGHT, WIDTH, channels))
    assert mod["main"].params[0].name_hint == "image" == mod["main"].attrs["input_names"][0]
    folded = FoldPreprocessing()(mod)
    assert ops(folded) == [PREPROCESS]
    for each in (mod, folded):
        np.testing.assert_allclose(run(each, images)[0], model(example).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frontend, channels", [("PyTorch", "BGR"), ("ONNX", "RGB")])
def test_a_detector_finds_what_torch_finds(frontend, channels):
    model, images = tiny_detector(min_size=64, max_size=96), frames()
    image = planes(images, channels)[0].float() / 255
    example = random_image(HEIGHT, WIDTH, seed=9)
    mod = FRONTENDS[frontend](
        model, example if frontend == "PyTorch" else example[None], Camera(HEIGHT, WIDTH, channels)
    )
    mod = tvm.transform.Sequential([detection_pipeline(), FoldPreprocessing()])(mod)
    assert ops(mod)[:2] == [PREPROCESS, "nn.conv2d"]
    expected = detect(model, image)
    names = list(expected) if frontend == "ONNX" else map(str, mod["main"].attrs["output_names"])
    found = dict(zip(names, run(mod, images)))
    assert len(found["boxes"]) == len(expected["boxes"]) >= 10
    assert share_found(found, expected) == 1


# --- models that begin at the first convolution


def by_mmdetection(images, scale, mean, std, divisor):
    """`mmcv.imrescale`, `imnormalize` and `impad_to_multiple`, without rounding; and the scale factor."""
    height, width = images.shape[1:3]
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    new_width, new_height = int(width * float(factor) + 0.5), int(height * float(factor) + 0.5)
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    planes = functional.interpolate(planes, (new_height, new_width), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    right, bottom = (int(np.ceil(n / divisor)) * divisor - n for n in (new_width, new_height))
    planes = functional.pad((planes - mean) / std, (0, right, 0, bottom))
    return planes.float(), (new_width / width, new_height / height)


@pytest.mark.parametrize("channels, to_rgb", [("BGR", True), ("RGB", True), ("RGB", False), ("BGR", False)])
@pytest.mark.parametrize("height, width", [(48, 64), (75, 40)])
def test_as_mmdetection(load, height, width, channels, to_rgb):
    torch.manual_seed(0)
    model, images = nn.Conv2d(3, 4, 3, 2, 1).eval(), frames(2, height, width)
    preprocessing = MMDet(scale=(133, 80), to_rgb=to_rgb)
    camera = Camera(height, width, channels, 2, preprocessing)
    swapped = images if channels == preprocessing.channels else images[..., ::-1].copy()
    expected, scale_factor = by_mmdetection(swapped, (133, 80), preprocessing.mean, preprocessing.std, 32)
    assert camera.model_shape == tuple(expected.shape) and camera.sizes.scale_factor == scale_factor
    mod = load(model, torch.rand(camera.model_shape), camera)
    assert ops(mod)[0] == PREPROCESS
    with torch.no_grad():
        np.testing.assert_allclose(run(mod, images)[0], model(expected).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "given, preprocessing, size, padded_size",
    [
        ((1080, 1920), MMDet(), (750, 1333), (768, 1344)),
        ((480, 640), MMDet(), (800, 1067), (800, 1088)),
        ((640, 480), MMDet(scale=(800, 1333)), (1067, 800), (1088, 800)),
        ((480, 640), MMDet(divisor=1), (800, 1067), (800, 1067)),
        ((480, 640), MMDet(scale=(320, 300), keep_ratio=False, divisor=1), (300, 320), (300, 320)),
    ],
)
def test_sizes(given, preprocessing, size, padded_size):
    sizes = Camera(*given, preprocessing=preprocessing).sizes
    assert (sizes.size, sizes.padded_size) == (size, padded_size)
    assert sizes.scale_factor == (size[1] / given[1], size[0] / given[0])
    assert Camera(*given).sizes is None


def test_a_model_in_half_precision():
    camera = Camera(48, 64, preprocessing=MMDet(scale=(133, 80)))
    model = nn.ReLU()
    mod = through_pytorch(model, torch.rand(camera.model_shape).half(), camera)
    assert mod["main"].ret_type.dtype == "float16" and ops(mod) == [PREPROCESS, "nn.relu"]
    mod = through_pytorch(model, torch.rand(1, 3, 48, 64).half(), Camera(48, 64))
    images = frames(1, 48, 64)
    expected = (planes(images).float() / 255).half().numpy()
    np.testing.assert_array_equal(run(mod, images)[0], expected)


def test_sizes_that_an_onnx_model_leaves_open_are_the_cameras():
    axes = {"image": {0: "batch", 2: "height", 3: "width"}}
    camera = Camera(48, 64, "BGR", 2, MMDet(scale=(133, 80)))
    mod = through_onnx(nn.Conv2d(3, 4, 3), torch.rand(1, 3, 32, 32), camera, dynamic_axes=axes)
    assert list(mod["main"].ret_type.shape) == [2, 4, 94, 126]


# --- what does not go together


@pytest.mark.parametrize(
    "camera, reason",
    [
        (
            Camera(40, 64),
            r"become \(1, 3, 40, 64\) or \(3, 40, 64\) .* 'image' is \(1, 3, 48, 64\) of float32",
        ),
        (Camera(48, 64, batch=2), r"become \(2, 3, 48, 64\) of float32 or float16 .* \(1, 3, 48, 64\)"),
        (Camera(48, 64, preprocessing=MMDet()), r"become \(1, 3, 800, 1088\) of"),
    ],
)
def test_images_of_another_size_are_refused(load, camera, reason):
    class Model(nn.Module):
        def forward(self, image):
            return image * 2

    with pytest.raises(ImportFailure, match=reason):
        load(Model(), torch.rand(1, 3, 48, 64), camera)


def test_a_model_of_several_inputs_is_refused():
    class Model(nn.Module):
        def forward(self, image, other):
            return image + other

    example = torch.rand(1, 3, 48, 64)
    with pytest.raises(
        ImportFailure, match=r"the only input of a model, but this model has \['image', 'other'\]"
    ):
        from_pytorch(Model(), (example, example), camera=Camera(48, 64))


def test_a_model_that_takes_whole_numbers_is_refused():
    example = torch.zeros(1, 3, 48, 64, dtype=torch.uint8)
    with pytest.raises(ImportFailure, match=r"'input' is .* of uint8"):
        from_pytorch(nn.Identity(), example, camera=Camera(48, 64))


def test_an_order_of_channels_that_is_none():
    with pytest.raises(ValueError, match="channels must be RGB or BGR, not 'GBR'"):
        Camera(48, 64, channels="GBR")
