"""RestoreMultiScaleRoIAlign: what a pyramid's RoIAlign becomes in imported graphs, and what looks like it."""

import functools
import math
import warnings

import numpy as np
import pytest
import torch
import torchvision

from frontends import from_onnx, from_pytorch
from tests.helpers import apply, assert_no_second_change, assert_same_numbers, module, ops, refusals, run
from tests.models.detectors import FRONTENDS, small_detector
from tests.ops.regions import SCALES, pyramid, regions
from topi_ext.roi_align import reference
from tvm_passes import Canonicalize, RestoreMultiScaleRoIAlign, detection_pipeline
from tvm_passes.engine.expressions import op_name
from tvm_passes.engine.graph import Graph

import tvm
from tvm import relay

PASSES = tvm.transform.Sequential([Canonicalize(), RestoreMultiScaleRoIAlign()])
TOLERANCE = 1e-4


class Pooled(torch.nn.Module):
    """torchvision's own, of one or two images; boxes come in shares of the image."""

    def __init__(self, pooled_size=3, sampling_ratio=2, **formula):
        super().__init__()
        names = [str(level) for level in range(4)]
        self.pool = torchvision.ops.MultiScaleRoIAlign(names, pooled_size, sampling_ratio, **formula)

    def forward(self, f0, f1, f2, f3, boxes, more_boxes):
        features = {str(level): feature for level, feature in enumerate((f0, f1, f2, f3))}
        boxes = [boxes * 256, more_boxes * 256][: len(f0)]
        return self.pool(features, boxes, [(256, 320)] * len(f0)), more_boxes + 1


def inputs_of(images=1, count=20, seed=0):
    arrays = *pyramid(images=images, seed=seed), *(regions(count, seed=i)[:, 1:] / 256 for i in range(2))
    return tuple(map(torch.from_numpy, arrays))


def through_pytorch(model, inputs, folder):
    return from_pytorch(model.eval(), inputs)[0]


def through_onnx(model, inputs, folder, dynamic=False):
    path, names = folder / "model.onnx", ["f0", "f1", "f2", "f3", "boxes", "more_boxes"]
    axes = {name: {0: f"number of {name}"} for name in names[4:]} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), opset_version=16, input_names=names, dynamic_axes=axes)
    return from_onnx(path)[0]


IMPORTS = {
    "PyTorch": through_pytorch,
    "ONNX": through_onnx,
    "ONNX, dynamic": functools.partial(through_onnx, dynamic=True),
}


def options_of(mod):
    """The numbers that the one RoIAlign of a module was given, by name."""
    (call,) = (node for node in Graph(mod["main"]).nodes if op_name(node) == "topi_ext.multiscale_roi_align")
    lists = ("scales", "pooled_size")
    return {
        name: [part.value for part in value] if name in lists else getattr(value, "value", value)
        for name, value in call.attrs.items()
    }


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("imported", IMPORTS)
def test_restored(imported, images, tmp_path):
    model, inputs = Pooled(), inputs_of(images)
    mod = IMPORTS[imported](model, inputs, tmp_path)
    after, report = apply(PASSES, mod)
    assert not refusals(report)
    assert ops(mod).count("vision.roi_align") == 4
    assert not {"vision.roi_align", "argwhere", "scatter_elements", "floor"} & set(ops(after))
    options = options_of(after)
    assert options["scales"] == SCALES and options["pooled_size"] == [3, 3]
    inputs = inputs_of(images, seed=1)
    found = run(after, *(tensor.numpy() for tensor in inputs))
    for tensor, array in zip(model(*inputs), found):
        np.testing.assert_allclose(array, tensor.numpy(), TOLERANCE, TOLERANCE)
    assert_no_second_change(PASSES, after)


@pytest.mark.parametrize("imported", ["PyTorch", "ONNX"])
def test_formula_is_read_from_the_graph(imported, tmp_path):
    model = Pooled((2, 5), sampling_ratio=0, canonical_scale=50, canonical_level=3)
    inputs = inputs_of()
    after, _ = apply(PASSES, IMPORTS[imported](model, inputs, tmp_path))
    options = options_of(after)
    names = ("canonical_size", "canonical_level", "min_level", "sampling_ratio", "eps_in_log2")
    assert [options[name] for name in names] == [50, 3, 2, 0, 0]
    assert options["eps"] == pytest.approx(1e-6) and options["pooled_size"] == [2, 5]
    found, _ = run(after, *(tensor.numpy() for tensor in inputs))
    np.testing.assert_allclose(found, model(*inputs)[0].numpy(), TOLERANCE, TOLERANCE)


# --- graphs by hand


def pooled_by_level(
    data,
    rois,
    log2=relay.log2,
    canonical=(224.0, 4.0),
    eps=1e-6,
    eps_in_log2=False,
    clip=(2, 5),
    offset=2,
    numbers=(0, 1, 2, 3),
    area=None,
    level_type="int64",
    background=0.0,
    regions_of=lambda rois, rows: relay.take(rois, rows, axis=0),
    written_number=lambda number: number,
    **pooling,
):
    """What importers make of it; each argument is something that might be otherwise."""
    options = {"pooled_size": (2, 2), "sample_ratio": 2, "layout": "NCHW", "mode": "avg", **pooling}
    boxes = relay.strided_slice(rois, [1], [5], axes=[1]) if area is None else rois

    def number(value):
        return relay.const(float(value), "float32")

    def column(of, at):
        return relay.take(of, relay.const(at), axis=1)

    all_rois = relay.concatenate([relay.strided_slice(rois, [0], [1], axes=[1]), boxes], axis=1)
    area = (area or (lambda box, x: (x(box, 2) - x(box, 0)) * (x(box, 3) - x(box, 1))))(boxes, column)
    ratio = relay.sqrt(area) / number(canonical[0])
    if eps_in_log2:
        target = log2(ratio + number(eps)) + number(canonical[1])
    else:
        target = (log2(ratio) + number(canonical[1])) + number(eps)
    levels = relay.cast(relay.clip(relay.floor(target), *clip), level_type)
    levels = levels - relay.const(offset, level_type)

    def rows_of(value):
        return relay.squeeze(relay.argwhere(relay.equal(levels, relay.const(value, level_type))), [1])

    count = int(rois.type_annotation.shape[0])
    result = relay.full(relay.const(background), (count, 8, 2, 2), "float32")
    for feature, scale, value in zip(data, SCALES, numbers):
        pooled = relay.vision.roi_align(
            feature, regions_of(all_rois, rows_of(value)), spatial_scale=scale, **options
        )
        index = relay.reshape(rows_of(written_number(value)), [-1, 1, 1, 1])
        for axis, length in ((1, 8), (2, 2), (3, 2)):
            index = relay.repeat(index, length, axis)
        result = relay.scatter_elements(result, index, pooled, axis=0)
    return result


def by_hand(count=20, **different):
    data = [relay.var(f"f{level}", shape=map_.shape) for level, map_ in enumerate(pyramid())]
    rois = relay.var("rois", shape=(count, 5))
    return module(*data, rois, pooled_by_level(data, rois, **different))


def log_of_onnx(x, base=2):
    return relay.log(x) / relay.const(math.log(base), "float32")


@pytest.mark.parametrize("eps_in_log2", [False, True])
@pytest.mark.parametrize("log2", [relay.log2, log_of_onnx])
def test_both_places_of_eps(eps_in_log2, log2):
    """torchvision before 0.5 added it inside the logarithm."""
    mod = by_hand(eps_in_log2=eps_in_log2, eps=0.25, log2=log2)
    after = assert_same_numbers(PASSES, mod, *pyramid(), regions(20), rtol=TOLERANCE, atol=TOLERANCE)
    options = options_of(after)
    assert (options["eps"], options["eps_in_log2"]) == (0.25, eps_in_log2)


def test_levels_in_any_order():
    mod = by_hand(numbers=(3, 1, 0, 2))
    after = assert_same_numbers(PASSES, mod, *pyramid(), regions(20), rtol=TOLERANCE, atol=TOLERANCE)
    assert options_of(after)["scales"] == [SCALES[2], SCALES[1], SCALES[3], SCALES[0]]


def test_a_level_without_regions():
    """As torchvision's MobileNet, whose two maps are of one scale and so of one level."""
    mod = by_hand(clip=(2, 3))
    after = assert_same_numbers(PASSES, mod, *pyramid(), regions(20), rtol=TOLERANCE, atol=TOLERANCE)
    assert options_of(after)["scales"] == SCALES[:2]


def test_regions_without_level_are_zero():
    rois = regions(20)
    rois[3, 3], rois[5, 1:] = rois[3, 1] - 9, np.nan
    after, _ = apply(PASSES, by_hand())
    (found,) = run(after, *pyramid(), rois)
    assert not found[[3, 5]].any()
    options = {"pooled_size": 2, "scales": SCALES, "sampling_ratio": 2}
    expected = reference.multiscale_roi_align(pyramid(), rois, **options)
    np.testing.assert_allclose(found, expected, TOLERANCE, TOLERANCE)


def moved(rois, rows):
    """As TVM spells `aligned`."""
    return relay.take(rois, rows, axis=0) - relay.const(np.float32([[0, 2, 2, 2, 2]]))


def clipped_regions(rois, rows):
    return relay.clip(relay.take(rois, rows, axis=0), 0, 300)


FORMULA = "not computed by torchvision's formula"


@pytest.mark.parametrize(
    "different, reason",
    [
        ({"regions_of": moved}, "the regions of a level are not gathered unchanged from all regions"),
        ({"regions_of": clipped_regions}, "the regions of a level are not gathered unchanged"),
        ({"log2": relay.log}, FORMULA),
        ({"log2": functools.partial(log_of_onnx, base=3)}, "not by log(2)"),
        ({"log2": relay.sqrt}, FORMULA),
        ({"canonical": (224.0, 4.5)}, "the formula of the levels is out of range"),
        ({"canonical": (-224.0, 4.0)}, "the formula of the levels is out of range"),
        ({"eps": -0.1}, "the formula of the levels is out of range"),
        ({"clip": (1.5, 5)}, "the formula of the levels is out of range"),
        ({"clip": (1, 4)}, "the first level is 1, but 2 is subtracted"),
        ({"clip": (2, 6)}, "the formula has 5 levels, but the regions of level [0, 1, 2, 3] are pooled"),
        ({"numbers": (0, 1, 3, 4)}, "the regions of level [0, 1, 3, 4] are pooled"),
        ({"numbers": (0, 1, 2)}, "the regions of level [0, 1, 2] are pooled"),
        ({"numbers": (0, 1, 2, 2)}, "the regions of level [0, 1, 2, 2] are pooled"),
        ({"level_type": "float32"}, FORMULA),
        (
            {"area": lambda box, x: (x(box, 2) - x(box, 0)) * (x(box, 2) - x(box, 0))},
            "from other regions",
        ),
        (
            {"area": lambda box, x: (x(box, 2) - x(box, 0)) + (x(box, 3) - x(box, 1))},
            "from other regions",
        ),
        ({"background": 1.0}, "rows without a level are not zero"),
        ({"written_number": lambda number: 3 - number}, "are written to the rows of another"),
        ({"mode": "max"}, "not of NCHW data with mode avg"),
    ],
)
def test_near_misses_are_refused(different, reason):
    if "area" in different:
        area = different["area"]
        different = {"area": lambda rois, x: area(relay.strided_slice(rois, [1], [5], axes=[1]), x)}
    mod = by_hand(**different)
    after, report = apply(PASSES, mod)
    assert "topi_ext.multiscale_roi_align" not in ops(after)
    assert any(reason in refusal for refusal in refusals(report)), refusals(report)


def test_a_level_that_is_used_elsewhere_is_refused():
    mod = by_hand()
    main = Graph(mod["main"])
    pooled = next(node for node in main.nodes if op_name(node) == "vision.roi_align")
    mod = tvm.IRModule.from_expr(relay.Function(mod["main"].params, relay.Tuple([mod["main"].body, pooled])))
    after, report = apply(PASSES, mod)
    assert "topi_ext.multiscale_roi_align" not in ops(after)
    assert refusals(report) == ["the result of one level is used elsewhere"]


# --- torchvision's detectors


@pytest.mark.slow
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize(
    "name, count", [("fasterrcnn_mobilenet_v3_large_320_fpn", 1), ("maskrcnn_resnet50_fpn", 2)]
)
def test_detectors(name, count, frontend):
    after, report = apply(detection_pipeline(), FRONTENDS[frontend](small_detector(name)))
    assert ops(after).count("topi_ext.multiscale_roi_align") == count
    assert "vision.roi_align" not in ops(after)
    assert not [part for part in report.passes if "RoIAlign" in part.name and part.refusals]
