"""Operators that move elements, and those that ask for inputs known at import."""

import numpy as np
from onnx import TensorProto

from tests.relax.onnx_cases.case import IMAGE, LATEST, MASK, OTHER, ROWS, WHOLE, case, integers, random

SHAPES = {
    "Concat": case("Concat", IMAGE, random(2, 1, 7, 9), axis=-3),
    "DepthToSpace": case("DepthToSpace", random(2, 12, 3, 5), blocksize=2),
    "DepthToSpace_crd": case("DepthToSpace", random(2, 12, 3, 5), blocksize=2, mode="CRD"),
    "SpaceToDepth": case("SpaceToDepth", random(2, 3, 4, 6), blocksize=2),
    "Expand": case("Expand", random(3, 1), [2, 1, 5], known=[1]),
    "Expand_less": case("Expand", ROWS, [1, 1], known=[1]),
    "EyeLike": case("EyeLike", ROWS, k=1),
    "EyeLike_type": case("EyeLike", ROWS, k=-1, dtype=TensorProto.INT64),
    "Flatten": case("Flatten", IMAGE, axis=2),
    "Flatten_0": case("Flatten", IMAGE, axis=0),
    "Flatten_last": case("Flatten", IMAGE, axis=-1),
    "Reshape": case("Reshape", IMAGE, [0, -1, 3], known=[1]),
    "Squeeze": case("Squeeze", random(1, 3, 1, 2), [-2], known=[1]),
    "Squeeze_all": case("Squeeze", random(1, 3, 1, 2)),
    "Unsqueeze": case("Unsqueeze", ROWS, [-1, 0], known=[1]),
    "Transpose": case("Transpose", IMAGE, perm=[2, 0, 3, 1]),
    "Transpose_all": case("Transpose", IMAGE),
    "Tile": case("Tile", ROWS, [2, 3], known=[1]),
    "Split": case("Split", IMAGE, [1, 3], known=[1], axis=1, outputs=2),
    "Split_equal": case("Split", IMAGE, axis=-3, outputs=2, opsets=(13, 17)),
    "Split_number": case("Split", IMAGE, axis=2, num_outputs=3, outputs=3, opsets=(18, LATEST)),
    "Slice": case("Slice", IMAGE, [1, -4], [3, 99], [1, -1], [1, 2], known=[1, 2, 3, 4]),
    "Slice_default": case("Slice", ROWS, [1], [-1], known=[1, 2]),
    "Slice_backwards": case("Slice", IMAGE, [-1, 5], [-99, 1], [3, 2], [-1, -2], known=[1, 2, 3, 4]),
    "Slice_empty": case("Slice", ROWS, [3], [1], [1], known=[1, 2, 3]),
    "Gather": case("Gather", IMAGE, [[-1, 0], [2, 1]], known=[1], axis=1),
    "Gather_one": case("Gather", IMAGE, np.int64(-2), known=[1], axis=3),
    "Gather_data": case("Gather", ROWS, integers(-3, 3, 2, 2)),
    "GatherElements": case("GatherElements", ROWS, integers(-5, 5, 3, 2), axis=1),
    "GatherND": case("GatherND", IMAGE, np.int64([[0, -1], [1, 2]])),
    "GatherND_batch": case("GatherND", IMAGE, np.int64([[1, -1], [3, 2]]), batch_dims=1),
    "ScatterElements": case(
        "ScatterElements", ROWS, [[-1, 0], [1, 2]], random(2, 2), axis=1, opsets=(16, LATEST)
    ),
    "ScatterElements_fewer": case(
        "ScatterElements", IMAGE, [[[[1, -1]]], [[[0, 3]]]], random(2, 1, 1, 2), axis=3, opsets=(16, LATEST)
    ),
    "ScatterElements_sums": case(
        "ScatterElements", ROWS, [[0, 0], [1, 2]], random(2, 2), axis=1, reduction="add", opsets=(16, LATEST)
    ),
    "ScatterElements_least": case(
        "ScatterElements", WHOLE, [[0, 0], [1, 2]], OTHER[:2, :2], reduction="min", opsets=(18, LATEST)
    ),
    "ScatterND_products": case(
        "ScatterND", ROWS, [[0, 0], [0, 0]], random(2), reduction="mul", opsets=(16, LATEST)
    ),
    "OneHot_data": case("OneHot", [0, -1, 2, 9], np.int64(4), np.float32([-1, 5]), known=[1, 2], axis=0),
    "OneHot_last": case("OneHot", [[0, -4, -5]], np.int64(4), np.int64([0, 1]), known=[1, 2]),
    "Trilu_data": case("Trilu", IMAGE, np.int64(1), known=[1], opsets=(14, LATEST)),
    "Trilu_lower": case("Trilu", ROWS, upper=0, opsets=(14, LATEST)),
    "ScatterND": case("ScatterND", ROWS, [[0, -1], [2, 2]], random(2), opsets=(16, LATEST)),
    "ScatterND_rows": case("ScatterND", ROWS, [[2], [-3]], random(2, 5), known=[1], opsets=(16, LATEST)),
    "Pad": case("Pad", IMAGE, [0, 0, 1, 2, 0, 1, 3, 0], np.float32(1.5), known=[1, 2]),
    "Pad_reflect": case("Pad", IMAGE, [0, 0, 1, 2, 0, 0, 3, 4], known=[1], mode="reflect"),
    "Pad_edge": case("Pad", IMAGE, [1, 0, 1, 2, 0, 0, 3, 4], known=[1], mode="edge"),
    "Pad_axes": case("Pad", IMAGE, [1, 2, 3, 0], None, [-1, 1], known=[1, 3], opsets=(18, LATEST)),
    "Pad_integers": case("Pad", WHOLE, [1, 0, 0, 2], np.int64(-7), known=[1, 2]),
    "Pad_negative": case("Pad", IMAGE, [0, 0, -1, 2, 0, 1, 0, -3], np.float32(1.5), known=[1, 2]),
    "Pad_nothing": case("Pad", IMAGE, [0] * 8, known=[1]),
}

ONLY_KNOWN = {
    "Compress": case("Compress", ROWS, np.array([True, False, True]), axis=0),
    "ConstantOfShape": case("ConstantOfShape", [2, 3]),
    "NonZero": case("NonZero", MASK),
    "OneHot": case("OneHot", [0, -1, 2], np.int64(4), np.float32([-1, 5]), axis=0),
    "Range": case("Range", np.int64(3), np.int64(-4), np.int64(-2)),
    "Trilu": case("Trilu", ROWS, np.int64(1), upper=0, opsets=(14, LATEST)),
    "Unique": case("Unique", WHOLE),
}
