"""One call of each operator, with arrays, and the oracle's answer."""

from dataclasses import dataclass, field
from importlib import import_module

import numpy as np

import topi_ext

RANDOM = np.random.default_rng(3)


@dataclass(frozen=True)
class Case:
    """`lengths` names the extents of each array that may be known only at run time, "-" for others."""

    operator: str
    arrays: tuple
    lengths: tuple
    arguments: tuple = ()  # behind the arrays
    options: dict = field(default_factory=dict)
    module: str = ""  # of the oracle, where it is not named as the operator is
    tolerance: float = 0
    together: bool = False  # whether all arrays but the last are one argument

    def of(self, function, tensors):
        """The function, which is the operator or its oracle, of tensors."""
        tensors = [tensors[:-1], tensors[-1]] if self.together else tensors
        return function(*tensors, *self.arguments, **self.options)

    def expression(self, tensors):
        return self.of(getattr(topi_ext, self.operator), tensors)

    def expected(self):
        oracle = import_module(f"topi_ext.{self.module or self.operator}.reference")
        answer = self.of(getattr(oracle, self.operator), list(self.arrays))
        return [np.asarray(each) for each in (answer if isinstance(answer, tuple) else (answer,))]

    def assert_expected(self, found):
        for mine, theirs in zip(found, self.expected(), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=self.tolerance, atol=self.tolerance)


def floats(*shape, low=0.0, high=1.0):
    return RANDOM.uniform(low, high, shape).astype("float32")


def boxes(count, size=100):
    corners = floats(count, 2, high=size * 0.8)
    return np.concatenate([corners, corners + floats(count, 2, low=1, high=size * 0.4)], 1)


def regions(count, images, size=100):
    return np.concatenate([RANDOM.integers(0, images, (count, 1)), boxes(count, size)], 1).astype("float32")


COUNT = 300
SCENE = floats(3, 3, low=-0.3, high=0.3) + np.eye(3, dtype="float32") * 8
NMS = (boxes(COUNT), floats(COUNT).round(2), RANDOM.integers(-2, 3, COUNT))
PYRAMID = tuple(floats(2, 8, size, size) for size in (32, 16, 8))
BIN = {"pooled_size": 3, "spatial_scale": 0.25}
MATRICES = np.stack([SCENE, SCENE * np.float32(1.1)])
POLYGONS = (floats(30, 2, high=5), np.array([0, 7, 15, 30], "int32"))
LAYERS = np.array([[0, 1, 3], [0, 2, 3]], "int32")

CASES = {
    "nms": Case("batched_nms", NMS, ("n -", "n", "n"), options={"iou_threshold": 0.4}),
    "nms of some": Case(
        "batched_nms",
        NMS,
        ("n -", "n", "n"),
        options={"iou_threshold": 0.4, "score_threshold": 0.3, "max_output_size": 20},
    ),
    "nms of a batch": Case(
        "batched_nms",
        tuple(np.stack([array, array[::-1]]) for array in NMS),
        ("b n -", "b n", "b n"),
        options={"iou_threshold": 0.6},
    ),
    "roi_align": Case(
        "roi_align",
        (floats(2, 8, 30, 40), regions(20, 2)),
        ("b - h w", "n -"),
        options={**BIN, "sampling_ratio": 2},
        tolerance=2e-5,
    ),
    "roi_align in nhwc": Case(
        "roi_align",
        (floats(2, 30, 40, 8), regions(20, 2)),
        ("b h w -", "n -"),
        options={**BIN, "sampling_ratio": 0, "aligned": True, "layout": "NHWC"},
        tolerance=2e-5,
    ),
    "multiscale_roi_align": Case(
        "multiscale_roi_align",
        (*PYRAMID, regions(20, 2, 128)),
        ("b - - -", "b - - -", "b - - -", "n -"),
        options={
            "pooled_size": 3,
            "scales": [1 / 4, 1 / 8, 1 / 16],
            "sampling_ratio": 2,
            "canonical_size": 40,
        },
        module="roi_align",
        tolerance=2e-5,
        together=True,
    ),
    "roi_pool": Case("roi_pool", (floats(2, 8, 30, 40), regions(20, 2)), ("b - h w", "n -"), options=BIN),
    "ps_roi_pool": Case(
        "ps_roi_pool",
        (floats(2, 18, 30, 40), regions(20, 2)),
        ("b - h w", "n -"),
        options=BIN,
        module="roi_pool",
        tolerance=1e-5,
    ),
    "paste_masks": Case(
        "paste_masks", (floats(5, 1, 8, 8), boxes(5, 60)), ("n - - -", "n -"), ((50, 64),), tolerance=1e-5
    ),
    "encode_masks": Case("encode_masks", (floats(5, 1, 8, 8), boxes(5, 60)), ("n - - -", "n -"), ((50, 64),)),
    "transform_points": Case("transform_points", (floats(30, 2), SCENE), ("n -", "- -"), tolerance=1e-6),
    "transform_points of each sample": Case(
        "transform_points", (floats(2, 30, 2), MATRICES), ("b n -", "b - -"), tolerance=1e-6
    ),
    "heatmaps_to_keypoints": Case(
        "heatmaps_to_keypoints", (floats(3, 2, 8, 8), boxes(3)), ("n - - -", "n -"), tolerance=1e-4
    ),
    "warp_affine": Case(
        "warp_affine",
        (floats(2, 3, 20, 24), MATRICES[:, :2] / 8),
        ("b - h w", "b - -"),
        ((18, 30),),
        tolerance=1e-4,
    ),
    "warp_affine of opencv": Case(
        "warp_affine",
        (RANDOM.integers(0, 256, (2, 20, 24, 3)).astype("uint8"), MATRICES[:, :2] / 8),
        ("b h w -", "b - -"),
        ((18, 30),),
        {"mode": "cv2_fixed", "layout": "NHWC", "border_mode": "reflect_101"},
    ),
    "warp_perspective": Case(
        "warp_perspective",
        (floats(2, 3, 20, 24), MATRICES / 8),
        ("b - h w", "b - -"),
        ((18, 30),),
        tolerance=1e-4,
    ),
    "preprocess": Case(
        "preprocess",
        (RANDOM.integers(0, 256, (2, 20, 30, 3)).astype("uint8"),),
        ("b - - -",),
        ((33, 40), (64, 64)),
        {"mean": [100, 110, 120], "std": [50, 60, 70]},
        tolerance=1e-5,
    ),
    "rasterize_boxes": Case(
        "rasterize_boxes",
        (np.concatenate([boxes(6, 5), floats(6, 1)], 1), np.array([[0, 3, 6], [0, 1, 6]], "int32"), MATRICES),
        ("n -", "b -", "b - -"),
        ((40, 48),),
        module="rasterize",
    ),
    "rasterize_polygons": Case(
        "rasterize_polygons",
        (*POLYGONS, LAYERS, MATRICES),
        ("p -", "n", "b -", "b - -"),
        ((40, 48),),
        module="rasterize",
    ),
    "rasterize_polylines": Case(
        "rasterize_polylines",
        (*POLYGONS, LAYERS, MATRICES),
        ("p -", "n", "b -", "b - -"),
        ((40, 48),),
        module="rasterize",
    ),
    "rasterize_map": Case(
        "rasterize_map",
        (*POLYGONS, np.array([0, 1, 0], "int32"), MATRICES),
        ("p -", "n", "s", "b - -"),
        ((40, 48),),
        {"palette": [((10, 20, 30), "fill"), ((200, 100, 0), "line")]},
        module="rasterize",
    ),
    "group_norm": Case(
        "group_norm",
        (floats(2, 8, 5, 7), floats(8), floats(8)),
        ("b - h w", "-", "-"),
        options={"groups": 2, "activation": "relu"},
        tolerance=1e-4,
    ),
    "group_norm in nhwc": Case(
        "group_norm",
        (floats(2, 5, 7, 16).astype("float16"), floats(16), floats(16)),
        ("b h w -", "-", "-"),
        options={"groups": 4, "axis": 3},
        tolerance=4e-3,
    ),
    "layer_norm": Case(
        "layer_norm",
        (floats(2, 5, 40).astype("float16"), floats(40), floats(40)),
        ("b n -", "-", "-"),
        tolerance=4e-3,
    ),
    "layer_norm of pixels": Case(
        "layer_norm", (floats(2, 8, 5, 7),), ("b - h w",), options={"axis": 1}, tolerance=1e-4
    ),
    "deformable_attention": Case(
        "deformable_attention",
        (floats(2, 80, 8), floats(2, 5, 6, 2, low=-1.2, high=1.2), floats(2, 5, 6)),
        ("b - -", "b q - -", "b q -"),
        options={"levels": [(8, 8, 3), (4, 4, 3)]},
        tolerance=1e-5,
    ),
    "roi_align of int8": Case(
        "roi_align",
        (np.resize(np.arange(-128, 128, 7, "int8"), (2, 30, 40, 16)), regions(20, 2)),
        ("b h w -", "n -"),
        options={**BIN, "sampling_ratio": 2, "layout": "NHWC", "feature_scale": 0.02, "out_dtype": "float16"},
        tolerance=2e-3,
    ),
}
