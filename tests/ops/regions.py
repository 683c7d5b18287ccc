"""Feature pyramids and regions for tests and benchmarks of RoIAlign."""

import numpy as np
import torch
import torchvision
from torchvision.ops.poolers import LevelMapper

SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def pyramid(height=64, width=80, channels=8, images=2, layout="NCHW", dtype="float32", levels=4, seed=0):
    """The maps of a pyramid, each half as high and wide as the one before."""
    rng = np.random.default_rng(seed)
    shapes = [(images, channels, height >> level, width >> level) for level in range(levels)]
    maps = [rng.standard_normal(shape, "float32").astype(dtype) for shape in shapes]
    return [np.ascontiguousarray(np.moveaxis(map_, 1, 3)) for map_ in maps] if layout == "NHWC" else maps


def regions(count, images=2, height=256, width=320, seed=0):
    """Regions of all sizes, by image; some reach beyond it."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 1, (count, 2)) * [width, height]
    sides = np.exp(rng.normal(4.5, 1, (count, 2)))
    index = np.sort(rng.integers(0, images, (count, 1)), axis=0)
    return np.concatenate([index, centres - sides / 2, centres + sides / 2], axis=1).astype("float32")


def by_torchvision(features, rois, pooled_size, sampling_ratio, scales=SCALES):
    """The answer of torchvision's `MultiScaleRoIAlign`, which takes NCHW and regions sorted by image."""
    names = [str(level) for level in range(len(features))]
    pool = torchvision.ops.MultiScaleRoIAlign(names, pooled_size, sampling_ratio)
    first = int(-np.log2(scales[0]))
    pool.scales, pool.map_levels = list(scales), LevelMapper(first, first + len(scales) - 1)
    boxes = [rois[rois[:, 0] == image, 1:] for image in range(len(features[0]))]
    tensors = {name: as_tensor(map_) for name, map_ in zip(names, features)}
    return pool(tensors, list(map(as_tensor, boxes)), [(1, 1)])


def as_tensor(array):
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array
