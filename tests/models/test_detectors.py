"""torchvision's detection models through either frontend and the pipeline: restored, and right."""

import functools

import numpy as np
import pytest

import topi_ext
from tests.helpers import ops, quick, run
from tests.models.detectors import (
    FRONTENDS,
    detect,
    example,
    share_found,
    share_matched,
    small_detector,
)
from tests.models.nms_table import PAGE, row
from tests.models.zoo import DETECTION_MODELS
from topi_ext.conv2d_nhwc import onednn
from tvm_passes import Canonicalize, MergeNMSOfImages, detection_pipeline, explain
from tvm_passes.engine.expressions import location, op_name
from tvm_passes.engine.graph import Graph, calls_of

import tvm
from tvm import relay

pytestmark = pytest.mark.slow

RUN_ON_FIXED_SHAPES = {"PyTorch": "keypointrcnn_resnet50_fpn", "ONNX": "maskrcnn_resnet50_fpn"}
RUN_BY_TVMS_OWN_CONVOLUTIONS = ("ssd300_vgg16",)
TVMS_OWN = {"nn.conv2d", "nn.dense", "nn.conv2d_transpose"}  # in whose place there are others for oneDNN
RUN_FROM_ONNX = ("ssdlite320_mobilenet_v3_large",)


@pytest.fixture(scope="module", params=DETECTION_MODELS)
def detector(request):
    """A model and its name."""
    return small_detector(request.param), request.param


@pytest.fixture(scope="module")
def from_pytorch(detector):
    return FRONTENDS["PyTorch"](detector[0])


def test_through_pytorch_its_nms_is_restored(detector, from_pytorch):
    assert row(detector[1], "PyTorch", from_pytorch) in PAGE.read_text().splitlines()


def test_outputs_have_torchs_names_and_the_nms_its_source(detector, from_pytorch):
    main = from_pytorch["main"]
    names = list(detect(detector[0], example()))
    more = [name for name in names if name not in ("boxes", "scores", "labels")]
    assert list(map(str, main.attrs["output_names"])) == ["boxes", "scores", "labels", *more]
    assert any(location(node).startswith("torchvision::nms_") for node in Graph(main).nodes)


@pytest.fixture(scope="module")
def from_onnx(detector):
    return FRONTENDS["ONNX"](detector[0])


def test_through_onnx_its_nms_is_restored(detector, from_onnx):
    assert row(detector[1], "ONNX", from_onnx) in PAGE.read_text().splitlines()


@pytest.fixture(scope="module", params=FRONTENDS)
def frontend(request):
    return request.param


@pytest.fixture(scope="module")
def static(detector, frontend, request):
    """With fixed shapes, and what was refused. It asks for the detector so as to be made anew for each."""
    imported = request.getfixturevalue({"PyTorch": "from_pytorch", "ONNX": "from_onnx"}[frontend])
    report = explain(imported, detection_pipeline(topi_ext.cpu_target(), outputs="padded"))
    if onednn.is_available():
        assert not TVMS_OWN & set(ops(report.module))
    (made,) = (part for part in report.passes if part.name == "MakeDetectionStatic")
    return report.module, [outcome.reason for outcome in made.refusals]


def test_its_shapes_are_fixed(static):
    mod, refused = static
    nodes = Graph(relay.transform.InferType()(mod)["main"]).nodes
    assert not refused and not any("?" in str(getattr(node, "_checked_type_", "")) for node in nodes)


def test_on_fixed_shapes_it_finds_what_torch_finds(detector, frontend, static):
    if detector[1] != RUN_ON_FIXED_SHAPES[frontend]:
        pytest.skip("takes a minute; those that run show what shapes can change")
    image, mod = example(seed=1), static[0]
    *outputs, number = run_by_onednn(mod, as_it_takes_it(image, frontend))
    found = dict(zip(map(str, mod["main"].attrs["output_names"]), (array[:number] for array in outputs)))
    expected = detect(detector[0], image)
    assert number == len(expected["boxes"]) >= 10
    assert share_found(found, expected) >= 0.95


def run_by_onednn(mod, *arrays):
    """Where it is installed: TVM's own convolutions take a minute to compile."""
    return run(mod, *arrays, target=quick(topi_ext.cpu_target()), device=tvm.cpu())


def as_it_takes_it(image, frontend):
    return image.numpy() if frontend == "PyTorch" else image[None].numpy()


@pytest.fixture(scope="module")
def on_tensor_cores(from_pytorch):
    return detection_pipeline("cuda -arch=sm_90", outputs="padded")(from_pytorch)


def test_on_tensor_cores_its_convolutions_are_half(on_tensor_cores):
    calls = [
        node for node in Graph(relay.transform.InferType()(on_tensor_cores)["main"]).nodes if op_name(node)
    ]
    named = {"nn.conv2d", "topi_ext.conv2d_nhwc", "topi_ext.multiscale_roi_align"}
    found = {call: call.checked_type.dtype for call in calls if op_name(call) in named}
    assert set(found.values()) == {"float16"}
    left = [call for call in found if op_name(call) == "nn.conv2d"]
    assert all(int(call.attrs.groups) > 1 and call.attrs.data_layout == "NHWC" for call in left)
    assert not {"nn.dense", "nn.conv2d_transpose", "nn.batch_norm"} & set(map(op_name, calls))
    assert sum(op_name(call) == "topi_ext.preprocess" for call in calls) == 1


def test_in_half_precision_it_finds_what_torch_finds(detector, on_tensor_cores):
    """The convolution's kernels for LLVM compute what those for CUDA do; TVM's own, depthwise, do not."""
    if detector[1] != "maskrcnn_resnet50_fpn":
        pytest.skip("takes a minute; the one that runs has all that can be in half precision")
    image = example(seed=1)
    *outputs, number = run(on_tensor_cores, image.numpy(), target=quick())
    names = map(str, on_tensor_cores["main"].attrs["output_names"])
    found = dict(zip(names, (array[:number] for array in outputs)))
    assert share_matched(found, detect(detector[0], image)) >= 0.85


def test_it_finds_what_torch_finds(detector, from_pytorch):
    if detector[1] not in RUN_BY_TVMS_OWN_CONVOLUTIONS:
        pytest.skip("takes minutes; those that run, or run on fixed shapes, have what is in it")
    image = example(seed=1)  # another than it was imported with
    mod = detection_pipeline()(from_pytorch)
    found = dict(zip(map(str, mod["main"].attrs["output_names"]), run(mod, image.numpy())))
    expected = detect(detector[0], image)
    assert len(expected["boxes"]) >= 10
    assert len(found["boxes"]) == len(expected["boxes"])
    assert share_found(found, expected) >= 0.95


@pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed")
def test_by_onednn_it_finds_what_torch_finds(detector, frontend, request):
    if frontend == "ONNX" and detector[1] not in RUN_FROM_ONNX:
        pytest.skip("takes half a minute; its convolutions are those of the same model from PyTorch")
    if detector[1] == RUN_ON_FIXED_SHAPES[frontend]:
        pytest.skip("takes a minute, and runs by oneDNN on fixed shapes")
    imported = request.getfixturevalue({"PyTorch": "from_pytorch", "ONNX": "from_onnx"}[frontend])
    target = topi_ext.cpu_target()
    mod = relay.transform.InferType()(detection_pipeline(target)(imported))
    assert not TVMS_OWN & set(ops(mod))
    image = example(seed=1)
    found = run_by_onednn(mod, as_it_takes_it(image, frontend))
    found = dict(zip(map(str, mod["main"].attrs["output_names"]), found))
    expected = detect(detector[0], image)
    assert len(found["boxes"]) == len(expected["boxes"]) >= 10
    assert share_found(found, expected) >= 0.95


def test_by_onednn_in_bfloat16_it_finds_what_torch_finds(detector, from_pytorch):
    if detector[1] != "maskrcnn_resnet50_fpn":
        pytest.skip("the one that runs has all that can be in half precision")
    target = topi_ext.cpu_target()
    if not onednn.multiplies("bfloat16"):
        pytest.skip("oneDNN has no kernel in bfloat16 for this processor")
    mod = relay.transform.InferType()(detection_pipeline(target, "bfloat16")(from_pytorch))
    convolutions = [call for call in Graph(mod["main"]).nodes if op_name(call) == "topi_ext.conv2d_nhwc"]
    assert {call.checked_type.dtype for call in convolutions} == {"bfloat16"}
    image = example(seed=1)
    outputs = run_by_onednn(mod, image.numpy())
    found = dict(zip(map(str, mod["main"].attrs["output_names"]), outputs))
    # Of torch's own autocast to bfloat16, two thirds are alike.
    assert share_matched(found, detect(detector[0], image), iou=0.5, score=0.1) >= 0.7


BATCH = 2


@functools.lru_cache(maxsize=1)  # two tests that follow each other take the same
def batch_of(name):
    """A detector, and the module for several images."""
    model = small_detector(name)
    return model, FRONTENDS["PyTorch"](model, [example(seed) for seed in range(BATCH)])


@pytest.mark.parametrize(
    "name, stages", [("retinanet_resnet50_fpn", 1), ("fasterrcnn_mobilenet_v3_large_320_fpn", 2)]
)
def test_on_a_gpu_each_stage_has_one_nms_for_a_batch(name, stages):
    mod = detection_pipeline("cuda -arch=sm_90", outputs="padded")(batch_of(name)[1])
    found = calls_of(relay.transform.InferType()(mod), "topi_ext.batched_nms")
    assert [int(call.args[0].checked_type.shape[0]) for call in found] == [BATCH] * stages


def test_a_batch_on_fixed_shapes_finds_what_torch_finds():
    model, imported = batch_of("fasterrcnn_mobilenet_v3_large_320_fpn")
    mod = detection_pipeline(topi_ext.cpu_target(), outputs="padded")(imported)
    mod = relay.transform.InferType()(mod)
    assert not any("?" in str(getattr(node, "_checked_type_", "")) for node in Graph(mod["main"]).nodes)
    images = [example(seed=1), example(seed=5)]  # others than it was imported with
    arrays = [image.numpy() for image in images]
    *outputs, numbers = run_by_onednn(mod, *arrays)
    merged = tvm.transform.Sequential([MergeNMSOfImages(), Canonicalize()])(mod)
    assert len(calls_of(merged, "topi_ext.batched_nms")) == 2
    for output, expected in zip(run_by_onednn(merged, *arrays), [*outputs, numbers]):
        np.testing.assert_array_equal(output, expected)
    named = dict(zip(map(str, mod["main"].attrs["output_names"]), outputs))
    assert len(numbers) == BATCH
    for place, (image, number) in enumerate(zip(images, numbers)):
        found = {name: named[f"output{place}.{name}"][:number] for name in ("boxes", "scores", "labels")}
        expected = detect(model, image)
        assert number == len(expected["boxes"]) >= 10
        assert share_found(found, expected) >= 0.95


def test_half_precision_on_a_cpu_is_by_onednn(monkeypatch):
    with pytest.raises(ValueError, match="in bfloat16, a CPU needs oneDNN: give a target with -libs=onednn"):
        detection_pipeline("llvm", "bfloat16")
    monkeypatch.setattr(onednn, "multiplies", lambda dtype: False)
    with pytest.raises(ValueError, match="oneDNN has no convolutions in bfloat16 for this processor"):
        detection_pipeline("llvm -libs=onednn", "bfloat16")
