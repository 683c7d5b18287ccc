"""Whole networks: calibrated, through the pipelines for tensor cores, and as good as they are in float32."""

import pytest
import torch
import torchvision

from tests.helpers import module, run
from tests.models.detectors import detect, share_matched, through_pytorch
from tests.models.test_super_resolution import CUDA, imported
from tests.models.zoo import random_image, tiny_detector, tiny_mask_rcnn
from tests.quantize.networks import BETWEEN, BOUND, LAST, decibels, dtypes
from tvm_passes import InInt8, detection_pipeline, subpixel_pipeline
from tvm_passes.engine.expressions import op_name, static_shape
from tvm_passes.engine.graph import calls_of
from tvm_passes.quantize import Calibration, Observed, calibrate
from tvm_passes.quantize.observe import Network

from tvm import relay


@pytest.mark.parametrize("name", ["thread", "unet"])  # with residuals and shuffles, and with concatenations
def test_super_resolution(name):
    model, x, mod = imported(name)
    images = [torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) for seed in range(1, 4)]
    calibration = calibrate(mod, [image.numpy() for image in images], subpixel_pipeline(CUDA, "int8"))
    after = subpixel_pipeline(CUDA, calibration=calibration)(mod)
    first, *others = dtypes(after)
    assert first == ("float16", "int8") and {data for data, _ in others} == {"int8"}
    assert others[-1] == ("int8", "float16")
    with torch.no_grad():
        expected = model(x).numpy()
    # Ten layers of 35 to 40 dB each leave about 30; the float16 of everything else loses nothing beside it.
    assert decibels(expected, run(after, x.numpy())[0]) > 27


@pytest.fixture(scope="module")
def detector():
    """A RetinaNet, imported, and its calibration."""
    model = tiny_detector(min_size=128, max_size=128)
    mod = through_pytorch(model, random_image())
    batches = [random_image(seed=seed).numpy() for seed in range(4)]
    return model, mod, calibrate(mod, batches, detection_pipeline(CUDA, "int8"))


def test_heads_of_a_detector(detector):
    """Scores and regressions, each behind eight convolutions in a row, before anything is selected."""
    _, mod, calibration = detector
    network = Network.of(mod, detection_pipeline(CUDA, "int8"))
    users = network.graph.users
    heads = [conv for conv in network.names if op_name(users(conv)[0]) != op_name(conv)]
    before = relay.transform.InferType()(module(*network.main.params, relay.Tuple(heads)))
    after, image = InInt8(calibration)(before), random_image(seed=9).numpy()
    assert len(heads) == 2 and dtypes(after).count(LAST) == 2 and dtypes(after).count(BETWEEN) == 10
    regressions, scores = (decibels(*pair) for pair in zip(run(before, image), run(after, image)))
    assert regressions > 20 and scores > 36  # of scores, the greater part is the bias


def test_a_detector_finds_what_it_did(detector):
    """As far as that can be said of one whose scores are all alike: rounding decides what its NMS keeps."""
    model, mod, calibration = detector
    after = detection_pipeline(CUDA, calibration=calibration, outputs="padded")(mod)
    image = random_image(seed=9)
    *outputs, number = run(after, image.numpy())
    names = map(str, after["main"].attrs["output_names"])
    found = {name: array[: int(number)] for name, array in zip(names, outputs)}
    expected = detect(model, image)
    assert 0.8 < len(found["boxes"]) / len(expected["boxes"]) < 1.25
    assert share_matched(found, expected, iou=0.5, score=0.1) >= 0.5  # in float16, 0.85
    best = (torch.from_numpy(each["boxes"][:1]) for each in (found, expected))
    assert torchvision.ops.box_iou(*best) > 0.75


def test_what_is_read_of_a_region_in_int8():
    """Features are sampled in int8 and to int8, and of the masks of all classes there is one."""
    mod = through_pytorch(tiny_mask_rcnn(min_size=128, max_size=128), random_image())
    network = Network.of(mod, detection_pipeline(CUDA, "int8"))
    known = Calibration({name: Observed(BOUND, BOUND, BOUND, 40.0) for name in network.names.values()})
    after = relay.transform.InferType()(detection_pipeline(CUDA, calibration=known, outputs="padded")(mod))
    sampled = [*calls_of(after, "topi_ext.multiscale_roi_align")]
    assert len(sampled) == 2 and {call.checked_type.dtype for call in sampled} == {"int8"}
    features = [field for call in sampled for field in call.args[0].fields[:-1]]
    assert len(features) == 4 and {feature.checked_type.dtype for feature in features} == {"int8"}
    sides = {static_shape(conv)[1] for conv in calls_of(after, "topi_ext.conv2d_nhwc")}
    assert 28 in sides and not any(
        static_shape(conv)[1] == 28 and static_shape(conv)[3] > 16
        for conv in calls_of(after, "topi_ext.conv2d_nhwc")
    )
