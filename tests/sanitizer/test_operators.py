"""No input makes an operator of topi_ext, compiled for LLVM, access what is not its own."""

import numpy as np
import pytest

import topi_ext
from tests.helpers import module
from tests.sanitizer import sanitized
from tvm_passes import runtime

from tvm import relay

ANY = relay.Any()
MAX_FLOAT = np.finfo("float32").max
FLOATS = [
    np.nan,
    np.inf,
    -np.inf,
    MAX_FLOAT,
    -MAX_FLOAT,
    1e10,
    -1e10,
    2.0**31,
    -(2.0**31),
    1e-40,
    -0.0,
    0.0,
    0.5,
]
INTEGERS = [np.iinfo("int32").max, np.iinfo("int32").min, -1, 0, 1, 7, 1000]
LENGTHS = (0, 1, 2, 7, 40)


class Awkward:
    """Arrays of which some elements are ordinary and the others are what breaks kernels."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._share = (0.0, 0.1, 0.5, 1.0)[seed % 4]  # of the latter

    def length(self):
        return int(self._rng.choice(LENGTHS))

    def floats(self, *shape, scale=20.0, dtype="float32"):
        ordinary = self._rng.normal(scale / 2, scale, shape)
        with np.errstate(over="ignore"):
            return self._mixed(ordinary, FLOATS).astype(dtype)

    def integers(self, *shape, below=8, dtype="int32"):
        return self._mixed(self._rng.integers(-1, below, shape), INTEGERS).astype(dtype)

    def offsets(self, count, end):
        """Ascending, until some are not."""
        return self._mixed(np.sort(self._rng.integers(0, end + 1, count + 1)), INTEGERS).astype("int32")

    def pixels(self, *shape):
        return self._rng.integers(0, 256, shape).astype("uint8")

    def _mixed(self, ordinary, awkward):
        return np.where(
            self._rng.random(ordinary.shape) < self._share,
            self._rng.choice(awkward, ordinary.shape),
            ordinary,
        )


def variables(**types):
    return [relay.var(name, shape=shape, dtype=dtype) for name, (shape, dtype) in types.items()]


# Each function gives the variables and the result of a network, and a function of an `Awkward` to its inputs.


def nms():
    boxes, scores = variables(boxes=((ANY, 4), "float32"), scores=((ANY,), "float32"))

    def inputs(awkward):
        n = awkward.length()
        return awkward.floats(n, 4), awkward.floats(n)

    return [boxes, scores, topi_ext.nms(boxes, scores, 0.5)], inputs


def batched_nms():
    names = variables(
        boxes=((ANY, ANY, 4), "float32"),
        scores=((ANY, ANY), "float32"),
        class_ids=((ANY, ANY), "int32"),
        valid=((ANY,), "int32"),
        iou=((), "float32"),
        least=((), "float32"),
    )
    boxes, scores, class_ids, valid, iou, least = names
    options = {"score_threshold": least, "max_output_size": 5, "valid_count": valid}

    def inputs(awkward):
        b, n = awkward.length() % 4, awkward.length()
        arrays = awkward.floats(b, n, 4), awkward.floats(b, n), awkward.integers(b, n)
        return *arrays, awkward.integers(b, below=50), awkward.floats(scale=0.5), awkward.floats(scale=0.5)

    return [*names, topi_ext.batched_nms(boxes, scores, class_ids, iou, **options)], inputs


def many_boxes():
    """More than a block of one class: the path on which all threads work together."""
    names = variables(boxes=((2500, 4), "float32"), scores=((2500,), "float32"), class_ids=((2500,), "int64"))

    def inputs(awkward):
        ids = awkward.integers(2500, below=1, dtype="int64")
        return awkward.floats(2500, 4), awkward.floats(2500), ids

    return [*names, topi_ext.batched_nms(*names, 0.3)], inputs


def roi_align(layout="NCHW", sampling_ratio=2, aligned=False, by_position=False):
    channels = 12 if by_position else 3
    shape = (ANY, channels, ANY, ANY) if layout == "NCHW" else (ANY, ANY, ANY, channels)
    data, rois = variables(data=(shape, "float32"), rois=((ANY, 5), "float32"))
    options = {"pooled_size": (2, 3), "spatial_scale": 0.5, "sampling_ratio": sampling_ratio}
    options |= {"aligned": aligned, "layout": layout, "by_position": by_position}
    result = topi_ext.roi_align(data, rois, **options)

    def inputs(awkward):
        lengths = [max(awkward.length(), 1) for _ in "hw"]
        batch = awkward.length() % 3
        map_ = awkward.floats(batch, channels, *lengths)
        map_ = map_ if layout == "NCHW" else np.moveaxis(map_, 1, 3)
        rois = awkward.floats(awkward.length(), 5)
        rois[:, 0] = awkward.integers(len(rois), below=3) if batch else awkward.floats(len(rois))
        return map_, rois

    return [data, rois, result], inputs


def roi_pool(pool=topi_ext.roi_pool, channels=3):
    data, rois = variables(data=((ANY, channels, ANY, ANY), "float32"), rois=((ANY, 5), "float32"))

    def inputs(awkward):
        map_ = awkward.floats(2, channels, *(max(awkward.length(), 1) for _ in "hw"))
        rois = awkward.floats(awkward.length(), 5)
        rois[:, 0] = awkward.integers(len(rois), below=3)
        return map_, rois

    return [data, rois, pool(data, rois, pooled_size=(2, 3), spatial_scale=0.5)], inputs


def multiscale_roi_align(sampling_ratio=2, columns=5):
    levels = [relay.var(f"level{i}", shape=(2, 3, ANY, ANY)) for i in range(3)]
    rois = relay.var("rois", shape=(ANY, columns))
    options = {"pooled_size": 2, "scales": [1 / 4, 1 / 8, 1 / 16], "sampling_ratio": sampling_ratio}
    result = topi_ext.multiscale_roi_align(levels, rois, **options, canonical_size=20)

    def inputs(awkward):
        maps = [awkward.floats(2, 3, max(awkward.length(), 1), 5) for _ in levels]
        rois = awkward.floats(awkward.length(), columns, scale=100)
        if columns == 5:
            rois[:, 0] = awkward.integers(len(rois), below=3)
        return *maps, rois

    return [*levels, rois, result], inputs


def deformable_attention():
    levels, channels = ((3, 4, 2), (1, 2, 1)), 8
    names = variables(
        value=((ANY, 14, channels), "float32"),
        points=((ANY, ANY, 3, 2), "float32"),
        weights=((ANY, ANY, 3), "float32"),
    )

    def inputs(awkward):
        items, queries = awkward.length() % 3, awkward.length()
        return (
            awkward.floats(items, 14, channels),
            awkward.floats(items, queries, 3, 2),
            awkward.floats(items, queries, 3),
        )

    return [*names, topi_ext.deformable_attention(*names, levels=levels)], inputs


def paste_masks(threshold=None):
    masks, boxes = variables(masks=((ANY, 1, 7, 7), "float32"), boxes=((ANY, 4), "float32"))

    def inputs(awkward):
        n = awkward.length()
        return awkward.floats(n, 1, 7, 7), awkward.floats(n, 4)

    return [masks, boxes, topi_ext.paste_masks(masks, boxes, (17, 23), threshold=threshold)], inputs


def encode_masks(form, threshold=0.5, **options):
    masks, boxes = variables(masks=((ANY, 1, 7, 7), "float32"), boxes=((ANY, 4), "float32"))

    def inputs(awkward):
        n = awkward.length()
        return awkward.floats(n, 1, 7, 7), awkward.floats(n, 4)

    encoded = topi_ext.encode_masks(masks, boxes, (17, 23), form=form, threshold=threshold, **options)
    return [masks, boxes, encoded], inputs


def heatmaps_to_keypoints():
    maps, rois = variables(maps=((ANY, 2, 5, 6), "float32"), rois=((ANY, 4), "float32"))

    def inputs(awkward):
        n = awkward.length() % 3
        rois = awkward.floats(n, 4)
        return awkward.floats(n, 2, 5, 6), np.where(np.abs(rois) > 100, np.sign(rois) * 3e9, rois)

    return [maps, rois, topi_ext.heatmaps_to_keypoints(maps, rois).astuple()], inputs


def layer_norm(axis=-1):
    names = variables(data=((ANY, 20, 20), "float32"), gamma=((20,), "float32"), beta=((20,), "float32"))

    def inputs(awkward):
        return awkward.floats(awkward.length(), 20, 20), awkward.floats(20), awkward.floats(20)

    return [*names, topi_ext.layer_norm(*names, axis=axis)], inputs


def group_norm(axis=1):
    shape = (ANY, 20, 20, ANY) if axis == 1 else (ANY, ANY, 20, 20)
    names = variables(data=(shape, "float32"), gamma=((20,), "float32"), beta=((20,), "float32"))

    def inputs(awkward):
        n, size = awkward.length(), awkward.length()
        extents = (n, 20, 20, size) if axis == 1 else (n, size, 20, 20)
        return awkward.floats(*extents), awkward.floats(20), awkward.floats(20)

    return [*names, topi_ext.group_norm(*names, groups=5, axis=axis)], inputs


def attention():
    shapes = {"query": (1, 2, 5, 7), "key": (1, 2, 3, 7), "value": (1, 2, 3, 4), "mask": (1, 1, 5, 3)}
    names = variables(**{name: (shape, "float32") for name, shape in shapes.items()})
    result = topi_ext.attention(*names, scale=0.5, layouts=("BHND",) * 4)
    return [*names, result], lambda awkward: [awkward.floats(*shape) for shape in shapes.values()]


def preprocess(image_layout="NHWC", dtype="uint8", **result):
    shape = (ANY, 5, 9, 3) if image_layout == "NHWC" else (ANY, 3, 5, 9)
    image = relay.var("image", shape=shape, dtype=dtype)
    options = {"mean": [1, 2, 3], "std": [4, 5, 6], "image_layout": image_layout}
    result = topi_ext.preprocess(image, (8, 7), (9, 11), **options, **result)

    def inputs(awkward):
        whole = (awkward.length() % 3, *shape[1:])
        return (awkward.pixels(*whole) if dtype == "uint8" else awkward.floats(*whole),)

    return [image, result], inputs


def warp_affine(
    mode="exact", border_mode="constant", interpolation="bilinear", layout="NCHW", inverse_map=False
):
    shape = (ANY, 3, ANY, ANY) if layout == "NCHW" else (ANY, ANY, ANY, 3)
    data, matrix = variables(data=(shape, "uint8"), matrix=((ANY, 2, 3), "float64"))
    options = {"mode": mode, "border_mode": border_mode, "interpolation": interpolation, "layout": layout}
    result = topi_ext.warp_affine(data, matrix, (6, 37), **options, inverse_map=inverse_map)

    def inputs(awkward):
        n, h, w = awkward.length() % 3, max(awkward.length(), 1), max(awkward.length(), 1)
        image = awkward.pixels(n, 3, h, w) if layout == "NCHW" else awkward.pixels(n, h, w, 3)
        return image, awkward.floats(n, 2, 3, scale=2.0, dtype="float64")

    return [data, matrix, result], inputs


def warp_perspective(units="pixels", border_mode="constant", interpolation="bilinear", layout="NCHW"):
    shape = (ANY, 3, ANY, ANY) if layout == "NCHW" else (ANY, ANY, ANY, 3)
    data, matrix = variables(data=(shape, "uint8"), matrix=((ANY, 3, 3), "float64"))
    options = {"units": units, "border_mode": border_mode, "interpolation": interpolation, "layout": layout}
    result = topi_ext.warp_perspective(data, matrix, (6, 37), **options)

    def inputs(awkward):
        n, h, w = awkward.length() % 3, max(awkward.length(), 1), max(awkward.length(), 1)
        image = awkward.pixels(n, 3, h, w) if layout == "NCHW" else awkward.pixels(n, h, w, 3)
        return image, awkward.floats(n, 3, 3, scale=2.0, dtype="float64")

    return [data, matrix, result], inputs


def matrices_and_layers(awkward, count):
    samples = awkward.length() % 4
    matrices = awkward.floats(samples, 3, 3, scale=2.0, dtype="float64")
    return awkward.offsets(4 * samples + samples - 1, count).reshape(samples, -1) if samples else np.zeros(
        (0, 5), "int32"
    ), matrices


def rasterize_boxes(mode="parity", columns=5):
    names = variables(
        boxes=((ANY, columns), "float32"), layers=((ANY, 5), "int32"), matrices=((ANY, 3, 3), "float64")
    )

    def inputs(awkward):
        boxes = awkward.floats(awkward.length(), columns)
        return boxes, *matrices_and_layers(awkward, len(boxes))

    return [*names, topi_ext.rasterize_boxes(*names, (19, 21), mode=mode)], inputs


def rasterize_polygons(draw=topi_ext.rasterize_polygons):
    names = variables(
        points=((ANY, 2), "float32"),
        offsets=((ANY,), "int32"),
        layers=((ANY, 5), "int32"),
        matrices=((ANY, 3, 3), "float64"),
    )

    def inputs(awkward):
        points, shapes = awkward.floats(awkward.length(), 2), awkward.length()
        return points, awkward.offsets(shapes, len(points)), *matrices_and_layers(awkward, shapes)

    return [*names, draw(*names, (19, 21))], inputs


def rasterize_polylines():
    return rasterize_polygons(topi_ext.rasterize_polylines)


def rasterize_map():
    names = variables(
        points=((ANY, 2), "float64"),
        offsets=((ANY,), "int32"),
        styles=((ANY, ANY), "int8"),
        matrices=((ANY, 3, 3), "float64"),
    )
    palette = [((1, 2, 3), "fill"), ((4, 5, 6), "line")]

    def inputs(awkward):
        points, shapes = awkward.floats(awkward.length(), 2, dtype="float64"), awkward.length()
        _, matrices = matrices_and_layers(awkward, shapes)
        styles = awkward.integers(len(matrices), shapes, below=3).astype("int8")
        return points, awkward.offsets(shapes, len(points)), styles, matrices

    return [*names, topi_ext.rasterize_map(*names, (19, 21), palette=palette)], inputs


def transform_points(is_ragged=True):
    if not is_ragged:
        points, matrix = variables(points=((ANY, ANY, 2), "float32"), matrix=((ANY, 3, 3), "float32"))
        result, offsets = topi_ext.transform_points(points, matrix), []
    else:
        points, matrix, *offsets = variables(
            points=((ANY, 2), "float32"), matrix=((ANY, 3, 3), "float32"), offsets=((ANY,), "int32")
        )
        result = topi_ext.transform_points(points, matrix, *offsets)

    def inputs(awkward):
        samples, n = max(awkward.length(), 1), awkward.length()
        matrices = awkward.floats(samples, 3, 3)
        if not is_ragged:
            return awkward.floats(samples, n, 2), matrices
        return awkward.floats(n, 2), matrices, awkward.offsets(samples, n)

    return [points, matrix, *offsets, result], inputs


def conv2d_nhwc(channels=3, **options):
    data = relay.var("data", shape=(2, 9, 7, channels))
    weight, residual = relay.var("weight", shape=(8, 3, 3, channels)), None
    bias = relay.var("bias", shape=(8,))
    result = topi_ext.conv2d_nhwc(data, weight, bias, residual, activation="relu", **options)

    def inputs(awkward):
        return awkward.floats(2, 9, 7, channels), awkward.floats(8, 3, 3, channels), awkward.floats(8)

    return [data, weight, bias, result], inputs


def conv2d_nhwc_of_one_pixel():
    """Vectors of both lengths and what is left over, of all filters of a run and of some."""
    data, weight = relay.var("data", shape=(1, 1, 1, 23)), relay.var("weight", shape=(10, 1, 1, 23))

    def inputs(awkward):
        return awkward.floats(1, 1, 1, 23), awkward.floats(10, 1, 1, 23)

    return [data, weight, topi_ext.conv2d_nhwc(data, weight, activation="silu")], inputs


def conv2d_nhwc_in_int8():
    """With scales and biases that make results NaN, infinite, or too large for int8."""
    types = {"data": ((2, 9, 7, 3), "int8"), "weight": ((20, 3, 3, 3), "int8")}
    types |= {name: ((20,), "float32") for name in ("bias", "scale")}
    data, weight, bias, scale = inputs = variables(**types)
    result = topi_ext.conv2d_nhwc(data, weight, bias, scale=scale, out_dtype="int8", padding=1)

    def arrays(awkward):
        integers = (awkward.pixels(*shape).view("int8") for shape, dtype in types.values() if dtype == "int8")
        return *integers, awkward.floats(20), awkward.floats(20)

    return [*inputs, result], arrays


def conv2d_nhwc_in_place():
    data, destination = (relay.var(name, shape=(2, 9, 7, 16)) for name in ("data", "destination"))
    weight = relay.var("weight", shape=(8, 3, 3, 8))
    result = topi_ext.conv2d_nhwc_in_place(
        data, weight, destination=destination, data_from=8, result_from=8, result_channels=16, padding=1
    )

    def inputs(awkward):
        return awkward.floats(2, 9, 7, 16), awkward.floats(2, 9, 7, 16), awkward.floats(8, 3, 3, 8)

    return [data, destination, weight, result], inputs


def paste_masks_over(threshold=None):
    dtype = "float32" if threshold is None else "uint8"
    masks, boxes = variables(masks=((5, 1, 3, 3), "float32"), boxes=((5, 4), "float32"))
    images = topi_ext.full_after(boxes, (5, 1, 9, 11), dtype, 1)
    result = topi_ext.paste_masks_over(masks, boxes, images, threshold=threshold)

    def inputs(awkward):
        return awkward.floats(5, 1, 3, 3), awkward.floats(5, 4, scale=9.0)

    return [masks, boxes, result], inputs


def slice_by_lengths():
    data, other = variables(data=((ANY, 7), "float32"), other=((ANY,), "float32"))
    rows, more = ("length", 0, 0), ("length", 1, 0)
    bounds = {0: (("subtract", more, 3), ("add", rows, more), 2), 1: (-9, ("subtract", 2, more), 1)}
    result = topi_ext.slice_by_lengths(data, [other], bounds)
    return [data, other, result], lambda awkward: (
        awkward.floats(awkward.length(), 7),
        awkward.floats(awkward.length()),
    )


def sorts():
    """TVM's own, as the detection networks use them."""
    data = relay.var("data", shape=(ANY, 7))
    results = [relay.sort(data), relay.argsort(data), *relay.topk(data, 3), relay.sort(data, axis=0)]

    def inputs(awkward):
        return (awkward.floats(awkward.length(), 7),)

    return [data, relay.Tuple(results)], inputs


def grid_sample(method="bilinear", padding="zeros", align_corners=False):
    """TVM's own, as `topi_ext.corrections` computes it."""
    data, grid = variables(data=((ANY, 2, ANY, ANY), "float32"), grid=((ANY, 2, ANY, ANY), "float32"))
    result = relay.image.grid_sample(data, grid, method, "NCHW", padding, align_corners)

    def inputs(awkward):
        batch = awkward.length() % 3
        image = awkward.floats(batch, 2, *(max(awkward.length(), 1) for _ in "hw"))
        return image, awkward.floats(batch, 2, awkward.length(), awkward.length(), scale=2.0)

    return [data, grid, result], inputs


CASES = {
    "nms": nms,
    "batched_nms": batched_nms,
    "batched_nms of many boxes": many_boxes,
    "roi_align": roi_align,
    "roi_align, NHWC, aligned": lambda: roi_align("NHWC", aligned=True),
    "roi_align, as many samples as pixels": lambda: roi_align(sampling_ratio=-1),
    "roi_align, aligned, as many samples as pixels": lambda: roi_align("NHWC", 0, True),
    "roi_align, by position": lambda: roi_align("NCHW", aligned=True, by_position=True),
    "roi_pool": roi_pool,
    "ps_roi_pool": lambda: roi_pool(topi_ext.ps_roi_pool, 12),
    "multiscale_roi_align": multiscale_roi_align,
    "multiscale_roi_align of one image": lambda: multiscale_roi_align(columns=4),
    "multiscale_roi_align, as many samples as pixels": lambda: multiscale_roi_align(0),
    "deformable_attention": deformable_attention,
    "paste_masks": paste_masks,
    "paste_masks, threshold": lambda: paste_masks(0.5),
    "full_after, paste_masks_over": paste_masks_over,
    "paste_masks_over, threshold": lambda: paste_masks_over(0.5),
    "encode_masks": lambda: encode_masks("rle"),
    "encode_masks, threshold of 0": lambda: encode_masks("rle", 0.0),
    "encode_masks, little room": lambda: encode_masks("rle", capacity=30),
    "encode_masks, bits": lambda: encode_masks("bits"),
    "heatmaps_to_keypoints": heatmaps_to_keypoints,
    "group_norm": group_norm,
    "group_norm in NHWC": lambda: group_norm(-1),
    "attention": attention,
    "layer_norm": layer_norm,
    "layer_norm of pixels": lambda: layer_norm(1),
    "preprocess": preprocess,
    "preprocess, NCHW": lambda: preprocess("NCHW", "float32"),
    "preprocess, four channels": lambda: preprocess(layout="NHWC", dtype="uint8", padded_channels=4),
    "warp_affine": warp_affine,
    "warp_affine, cv2_fixed": lambda: warp_affine("cv2_fixed", "reflect", layout="NHWC"),
    "warp_affine, nearest": lambda: warp_affine("exact", "reflect_101", "nearest", "NHWC", True),
    "warp_affine, replicate": lambda: warp_affine("exact", "replicate", inverse_map=True),
    "warp_perspective": warp_perspective,
    "warp_perspective, NHWC": lambda: warp_perspective("corners", "reflect_101", layout="NHWC"),
    "warp_perspective, nearest": lambda: warp_perspective("centers", "reflect", "nearest"),
    "rasterize_boxes": rasterize_boxes,
    "rasterize_boxes, union": lambda: rasterize_boxes("union", 6),
    "rasterize_polygons": rasterize_polygons,
    "rasterize_polylines": rasterize_polylines,
    "rasterize_map": rasterize_map,
    "transform_points": transform_points,
    "transform_points, one matrix a sample": lambda: transform_points(False),
    "conv2d_nhwc": conv2d_nhwc,
    "conv2d_nhwc, strided": lambda: conv2d_nhwc(16, strides=2, padding=2, dilation=2, block_size=2),
    "conv2d_nhwc, of one pixel": conv2d_nhwc_of_one_pixel,
    "conv2d_nhwc, int8": conv2d_nhwc_in_int8,
    "conv2d_nhwc_in_place": conv2d_nhwc_in_place,
    "slice_by_lengths": slice_by_lengths,
    "sorts": sorts,
    "grid_sample": grid_sample,
    "grid_sample, border": lambda: grid_sample("bilinear", "border"),
    "grid_sample, nearest, reflection": lambda: grid_sample("nearest", "reflection"),
    "grid_sample, bicubic, reflection": lambda: grid_sample("bicubic", "reflection", True),
}


@pytest.mark.parametrize("case", CASES)
def test_awkward_inputs(case):
    network, inputs = CASES[case]()
    with sanitized() as sanitizer:
        model = runtime.compile(module(*network), "llvm")
        before = sanitizer.checked()
        for seed in range(24):
            model(*inputs(Awkward(seed)))
            sanitizer.check()
        assert sanitizer.checked() > before or case == "sorts"


def test_every_operator_is_among_them():
    names = set(topi_ext.__all__) - {"cpu_target"}
    assert all(any(case.startswith(name) for case in CASES) for name in names)
