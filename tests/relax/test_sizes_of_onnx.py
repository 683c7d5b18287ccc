"""ONNX models in Relax whose batch, or whose images' size, only the run knows, beside ONNX Runtime."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.vision_transformer import VisionTransformer

import frontends.relax
from frontends.relax import ImportFailure
from frontends.relax._onnx.sizes import Size, SizeUnknown, bounded, broadcast
from tests.relax.modules import QUICK, Of
from tests.relax.onnx_models import FLOAT, INT64, exported, in_onnxruntime, of_graph
from tvm_passes import runtime
from tvm_passes.relax import convolution_pipeline

from tvm import tirx

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of the exporter

BATCH = {"input.0": {0: "batch"}}
IMAGES = {"input.0": {0: "batch", 2: "height", 3: "width"}}
CONVOLUTION = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)


def imported(function, shape, axes, **options):
    model = function if isinstance(function, nn.Module) else Of(function)
    torch.manual_seed(0)
    model, _ = exported(model.eval(), torch.rand(shape), dynamic_axes=axes, **options)
    return model, frontends.relax.from_onnx(model)


def assert_as_in_onnxruntime(model, mod, *shapes):
    network = runtime.compile(mod, QUICK)
    for shape in shapes:
        array = np.random.default_rng(0).random(shape, "float32")
        (expected,) = in_onnxruntime(model, {"input.0": array}).values()
        np.testing.assert_allclose(network(array), expected, rtol=1e-4, atol=1e-5)
    return network


def shuffled(x):
    """Channels, as ShuffleNet does, by the shape of the images."""
    batch, _, height, width = x.shape
    x = F.pixel_unshuffle(CONVOLUTION(x), 2)
    return x.view(batch, 2, 8, height // 2, width // 2).transpose(1, 2).flatten(1, 2)


def joined(x):
    """A token for each image, and positions of a known number."""
    token = torch.ones(1, 1, 4).expand(x.shape[0], -1, -1)
    tokens = torch.cat([token, CONVOLUTION(x).flatten(2).transpose(1, 2)], 1)
    zeros = torch.zeros(x.shape[0], tokens.shape[1], 4).repeat(1, 1, 1)
    return tokens[:, 1:] + zeros[:, :-1], tokens[:, 0]


BATCHES = {
    "classifier": lambda: (
        nn.Sequential(
            *(CONVOLUTION, nn.BatchNorm2d(4), nn.ReLU6(), InvertedResidual(4, 4, 1, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
        ),
        (2, 3, 8, 10),
    ),
    "transformer": lambda: (VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5), (2, 3, 16, 16)),
    "shuffled": lambda: (shuffled, (2, 3, 4, 6)),
    "resized": lambda: (lambda x: F.interpolate(x, size=(9, 5), mode="bicubic")[:, :, 1:-1], (2, 3, 4, 6)),
    "pooled": lambda: (lambda x: F.adaptive_avg_pool2d(CONVOLUTION(x), 1).flatten(1), (2, 3, 4, 6)),
    "joined": lambda: (lambda x: torch.cat([each.flatten(1) for each in joined(x)], 1), (2, 3, 4, 6)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_of_any_batch(name):
    function, shape = BATCHES[name]()
    model, mod = imported(function, shape, BATCH)
    mod = convolution_pipeline(QUICK)(mod)
    assert_as_in_onnxruntime(model, mod, *((count, *shape[1:]) for count in (1, 2, 3)))


def upsampled(x):
    low = F.interpolate(F.relu(CONVOLUTION(x)), scale_factor=2, mode="nearest")
    return F.interpolate(low, scale_factor=3.0, mode="bilinear") + low.mean((2, 3), keepdim=True)


def padded_like(x):
    """As U-Nets do that take images of any size: they pad what they enlarge."""
    up = F.interpolate(F.max_pool2d(CONVOLUTION(x), 2), scale_factor=2.0)
    rest = x.shape[3] - up.shape[3]
    return torch.cat([x, F.pad(up, (rest // 2, rest - rest // 2))[:, :, : x.shape[2]]], 1)


def halved_and_cut(x):
    """As RealCUGAN does: the edge is mirrored, of odd sizes one pixel more, and convolutions cut it off."""
    height, width = x.shape[2:]
    more_columns, more_rows = (((size - 1) // 2 + 1) * 2 - size for size in (width, height))
    x = F.pad(x, (4, 4 + more_columns, 4, 4 + more_rows), "reflect")
    x = CONVOLUTION(x) + F.interpolate(F.max_pool2d(CONVOLUTION(x), 2), scale_factor=2.0)
    return F.pad(x, (-4, -4, -4, -4))[:, :, :height, :width]


def in_windows(x, mode="reflect"):
    """As SwinIR does: the edge is mirrored until windows fill the image, which is cut in the end."""
    height, width = x.shape[2:]
    x = F.pad(x, (0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4), mode)
    windows = x.view(x.shape[0], 3, x.shape[2] // 4, 4, x.shape[3] // 4, 4).softmax(5)
    return CONVOLUTION(windows.reshape(x.shape))[:, :, :height, :width]


def written(x):
    """Into every other pixel, the last row and the middle."""
    result = F.pad(torch.zeros_like(x), (1, 1, 1, 1))
    result[:, :, 1:-1, 1:-1] = x * 2
    result[:, :, ::2, ::2] = 5.0
    result[:, 1, -1] = 7.0
    return result


SIZES = {
    "written": written,
    "turned around": lambda x: x.flip(3) + x[:, :, -1:],
    "in windows": in_windows,
    "in windows beside zeros": lambda x: in_windows(x, "constant"),
    "in windows beside the edge": lambda x: in_windows(x, "replicate"),
    "in windows beside another one": lambda x: F.pad(
        x, (0, (x.shape[3] // 4 + 1) * 4 - x.shape[3])
    ).unflatten(3, (-1, 4)),
    "halved and cut": halved_and_cut,
    "convolved": nn.Sequential(CONVOLUTION, nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 8, 3), nn.PixelShuffle(2)),
    "upsampled": upsampled,
    "resized as given": lambda x: F.interpolate(x[:, :, ::2, ::2], x.shape[2:], mode="bilinear"),
    "normalized": lambda x: F.instance_norm(CONVOLUTION(x)),
    "normalized in groups": nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)),
    "bicubic": lambda x: F.interpolate(CONVOLUTION(x), scale_factor=2.0, mode="bicubic"),
    "with a grid": lambda x: x + torch.arange(x.shape[3]) + torch.arange(1, 2 * x.shape[2], 2)[:, None],
    "with its corners aligned": lambda x: F.interpolate(
        CONVOLUTION(x), scale_factor=2.0, mode="bilinear", align_corners=True
    ),
    "a mean resized to an image": lambda x: (
        x * F.interpolate(x.mean((2, 3), keepdim=True), x.shape[2:], mode="bilinear")
    ),
    "halved": lambda x: (
        F.interpolate(x, scale_factor=0.5, mode="bilinear") + F.interpolate(x, scale_factor=0.5)
    ),
    "nearest of a pyramid": lambda x: x + F.interpolate(F.max_pool2d(x, 3, 2, 1), size=x.shape[2:]),
    "cropped": lambda x: CONVOLUTION(x)[:, :, ::2, : x.shape[3]],
    "with its edge repeated": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
}


@pytest.mark.parametrize("name", SIZES)
def test_of_any_size(name):
    model, mod = imported(SIZES[name], (2, 3, 8, 10), IMAGES)
    mod = convolution_pipeline(QUICK)(mod)
    assert_as_in_onnxruntime(model, mod, (1, 3, 8, 10), (3, 3, 11, 6))


OF_MULTIPLES = {  # a function, shapes that it takes, and others, with what one of their sizes must be
    "halves joined": (
        lambda x: torch.cat([x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)], 1),
        [(1, 3, 8, 10), (3, 3, 6, 2)],
        [((1, 3, 7, 10), "height must be a multiple of 2, and is 7")],
    ),
    "halves of halves added": (
        lambda x: CONVOLUTION(x)[:, :3] + F.pixel_shuffle(F.pixel_unshuffle(x, 4), 4),
        [(1, 3, 8, 12), (3, 3, 4, 4)],
        [((1, 3, 6, 12), "height must be a multiple of 4"), ((1, 3, 8, 2), "width must be a multiple of 4")],
    ),
    "padded along one axis": (
        padded_like,
        [(1, 3, 8, 10), (3, 3, 6, 3)],
        [((1, 3, 7, 10), "height must be a multiple of 2")],
    ),
    "in windows": (
        in_windows,
        [(1, 3, 8, 12), (2, 3, 4, 4), (2, 3, 3, 5)],
        [((1, 3, 2, 12), "height must be at least 3, and is 2"), ((1, 3, 8, 1), "width must be at least 4")],
    ),
    "corners aligned of one and a half": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
        [(1, 3, 8, 12), (2, 3, 6, 10)],
        [((1, 3, 7, 12), "height must be a multiple of 2")],
    ),
    "products": (
        lambda x: x @ F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0).transpose(2, 3),
        [(1, 3, 8, 12), (2, 3, 7, 10)],
        [((1, 3, 8, 11), "width must be a multiple of 2")],
    ),
    "mirrored": (
        lambda x: CONVOLUTION(F.pad(x, (2, 1, 0, 3), mode="reflect")),
        [(1, 3, 4, 3), (2, 3, 9, 10)],
        [((1, 3, 3, 8), "height must be at least 4, and is 3")],
    ),
    "cut out": (
        lambda x: x[:, :, 2:4] * x[:, :, -3:-1],
        [(1, 3, 4, 3), (2, 3, 9, 10)],
        [((1, 3, 3, 8), "height must be at least 4")],
    ),
    "cut out by a part": (
        lambda x: x[:, :, x.shape[2] // 2 - 1 : x.shape[2] // 2 + 1],
        [(1, 3, 4, 3), (2, 3, 2, 10), (2, 3, 3, 8)],
        [((1, 3, 1, 8), "height must be at least 2, and is 1")],
    ),
    "smaller than a window": (
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)),
        [(1, 3, 6, 12), (2, 3, 7, 9)],
        [((1, 3, 5, 12), "height must be at least 6"), ((1, 3, 8, 3), "width must be at least 6")],
    ),
    "split": (
        lambda x: x.chunk(2, 3)[0].softmax(3) + F.pad(x, (-1, 0, 0, 0))[:, :, :, : x.shape[3] // 2],
        [(1, 3, 4, 6), (2, 3, 9, 10)],
        [((1, 3, 4, 5), "width must be a multiple of 2")],
    ),
}


@pytest.mark.parametrize("name", OF_MULTIPLES)
def test_of_some_sizes_and_no_others(name):
    function, taken, not_taken = OF_MULTIPLES[name]
    model, mod = imported(function, (2, 3, 8, 12), IMAGES)
    mod = convolution_pipeline(QUICK)(mod)
    network = assert_as_in_onnxruntime(model, mod, *taken)
    for shape, reason in not_taken:
        with pytest.raises(ValueError, match=f"does not take inputs of these sizes: {reason}"):
            network(torch.zeros(shape))


def test_blocks_that_do_not_fill_the_image():
    nodes = [helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)]
    model = of_graph(nodes, [("x", FLOAT, ["N", 4, "H", "W"])], [("y", FLOAT, ["N", 16, None, None])])
    network = runtime.compile(frontends.relax.from_onnx(model), QUICK)
    assert network(torch.zeros(1, 4, 2, 6)).shape == (1, 16, 1, 3)
    with pytest.raises(ValueError, match="does not take inputs of these sizes"):
        network(torch.zeros(1, 4, 3, 6))


REFUSED = {
    "a known number of pixels": (lambda x: CONVOLUTION(x) + torch.ones(4, 8, 10), "Add"),
    "a ratio of large numbers": (lambda x: F.interpolate(x, scale_factor=1.2345, mode="bilinear"), "Resize"),
    "turned": (lambda x: x + x.transpose(2, 3), "Add"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_right_for_some_sizes_only_is_refused(name):
    function, what = REFUSED[name]
    with pytest.raises(ImportFailure, match=f"{what}.*: give the sizes of the inputs by shapes"):
        imported(function, (2, 3, 8, 8 if name == "turned" else 10), IMAGES, opset=18)


COORDINATES = "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"
ROUNDINGS = "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"


def resizes(what, given):
    """A node for each way to resize."""
    ways = [{"mode": mode} for mode in ("linear", "cubic")]
    ways += [{"mode": "nearest", "nearest_mode": how} for how in ROUNDINGS]
    all_ways = [{**way, "coordinate_transformation_mode": kind} for way in ways for kind in COORDINATES]
    inputs = {"scales": ["x", "", given], "sizes": ["x", "", "", given]}[what]
    return [helper.make_node("Resize", inputs, [f"y{at}"], **way) for at, way in enumerate(all_ways)]


def assert_resized_as_in_onnxruntime(nodes, given, shapes, beside=()):
    inputs = [("x", FLOAT, ["N", 2, "H", "W"]), *beside]
    outputs = [(node.output[0], FLOAT, ["N", 2, None, None]) for node in nodes if node.op_type == "Resize"]
    model = of_graph(nodes, inputs, outputs, given)
    network = runtime.compile(frontends.relax.from_onnx(model), QUICK)
    for shape, *others in shapes:
        arrays = {"x": np.random.default_rng(0).random(shape, "float32")}
        arrays |= {name: np.zeros(other, "float32") for (name, *_), other in zip(beside, others)}
        expected = in_onnxruntime(model, arrays)
        for node, found in zip(nodes[-len(outputs) :], network(*arrays.values()).values()):
            theirs = expected[node.output[0]]
            np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-4, err_msg=str(node))


@pytest.mark.parametrize("scales", [(1.5, 1 / 3), (0.7, 2.0)])
def test_resizing_by_any_scale(scales):
    nodes = [node for node in resizes("scales", "scales") if b"align_corners" not in node.SerializeToString()]
    given = [("scales", np.array([1, 1, *scales], "float32"))]
    assert_resized_as_in_onnxruntime(nodes, given, [[(1, 2, 9, 12)], [(2, 2, 4, 7)], [(1, 2, 2, 3)]])


def test_a_multiple_is_named_by_the_size_and_not_by_its_parts():
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    sizes = [("x", FLOAT, ["N", 2, "H", "W"])], [("y", FLOAT, ["N", 2, None, None])]
    model = of_graph([node], *sizes, [("scales", np.array([1, 1, 1.5, 3], "float32"))])
    network = runtime.compile(frontends.relax.from_onnx(model), QUICK)
    with pytest.raises(ValueError, match="of these sizes: H must be a multiple of 2, and is 5"):
        network(torch.zeros(1, 2, 5, 7))


def test_resizing_to_any_size():
    shape = helper.make_node("Shape", ["y"], ["shape"])
    nodes = [shape, *resizes("sizes", "shape")]
    shapes = [[(1, 2, 9, 12), (1, 2, 5, 17)], [(2, 2, 4, 7), (2, 2, 12, 1)], [(1, 2, 1, 3), (1, 2, 2, 6)]]
    assert_resized_as_in_onnxruntime(nodes, [], shapes, [("y", FLOAT, ["N", 2, "height", "width"])])


def test_sizes_may_be_given():
    model, _ = exported(Of(lambda x: F.pixel_unshuffle(x, 2)), torch.rand(2, 3, 8, 10), dynamic_axes=IMAGES)
    mod = frontends.relax.from_onnx(model, shapes={"input.0": (None, 3, 4, 6)})
    assert_as_in_onnxruntime(model, mod, (1, 3, 4, 6), (3, 3, 4, 6))


def test_inputs_whose_sizes_have_one_name_have_one_size():
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"])]
    inputs = [("x", FLOAT, ["N", 3]), ("y", FLOAT, ["N", 3])]
    mod = frontends.relax.from_onnx(of_graph(nodes, inputs, [("sum", FLOAT, ["N", 3])]))
    one, other = (parameter.ty.shape[0] for parameter in mod["main"].params)
    assert isinstance(one, tirx.Var) and one.same_as(other)


def test_a_size_as_a_result():
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    model = of_graph(nodes, [("x", FLOAT, ["N", 3])], [("shape", INT64, [2])])
    with pytest.raises(ImportFailure, match="the output 'shape' is a size that only the run knows"):
        frontends.relax.from_onnx(model)


def test_what_is_missing_up_to_a_multiple():
    (n,) = (Size(tirx.Var("n", "int64")),)
    up = (n + 7) // 8 * 8
    for missing in ((8 - n % 8) % 8, -n % 8, up - n):
        assert n + missing == up and (n + missing) // 8 * 8 == up and 0 <= missing < 8
    assert n - n % 8 == n // 8 * 8 and (n * 3 - 5) // 2 == n - 2 + (n - 1) // 2


def test_comparisons_with_one_answer():
    n, h = (Size(tirx.Var(name, "int64")) for name in "nh")
    assert n * h * 6 // (n * 3) == h * 2 and n * h * n == h * n * n and n != 0 and n + 1 > 1 and n - 2 != n
    assert broadcast((n, 1, 3), (1, h, 3)) == (n, h, 3)
    assert bounded(slice(0, 2**63 - 1, 2), n) == (0, n, 2) and bounded(slice(-1, n, 1), n)[0] == n - 1
    for undecided in (lambda: n == 1, lambda: n > 2, lambda: n == h, lambda: broadcast((n,), (1, h))):
        with pytest.raises(SizeUnknown, match="is known only as it runs"):
            undecided()
    for known in (lambda: int(n), lambda: np.zeros(n), lambda: range(n)):
        with pytest.raises(SizeUnknown, match="it needs a size that only the run knows, n"):
            known()
