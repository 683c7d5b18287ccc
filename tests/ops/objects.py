"""Masks of objects with their boxes, for tests and benchmarks of pasting."""

import numpy as np


def objects(count, image_size, side=28, seed=0):
    """Masks (count, 1, side, side) between 0 and 1, and boxes inside an image, as a detector gives them."""
    rng = np.random.default_rng(seed)
    height, width = image_size
    centres = rng.uniform(0, 1, (count, 2)) * [width, height]
    sides = np.exp(rng.normal(-1.8, 0.8, (count, 2))) * [width, height]
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
    boxes = np.clip(boxes, 0, [width, height, width, height])
    return rng.random((count, 1, side, side), "float32"), boxes.astype("float32")


def ovals(count, image_size, side=28, seed=0):
    """The same, but masks of one piece with a soft, uneven outline, as those of a trained network."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    angle, waves = np.arctan2(y, x), rng.uniform(0, 0.08, (count, 5, 1, 1))
    phases = rng.uniform(0, 2 * np.pi, waves.shape)
    turns = np.arange(1, 6).reshape(5, 1, 1)
    radius = 0.75 + (waves * np.cos(turns * angle + phases)).sum(1)
    masks = 1 / (1 + np.exp((np.hypot(y, x) - radius) * side / 2))
    return masks[:, None].astype("float32"), objects(count, image_size, side, seed)[1]


def heatmaps(count, keypoints, size, seed=0, image_size=(60, 80)):
    """Heatmaps (count, keypoints, *size) with more than one hill each, and rois inside an image."""
    values = np.random.default_rng(seed).standard_normal((count, keypoints, *size)).astype("float32")
    return values, objects(count, image_size, seed=seed)[1]
