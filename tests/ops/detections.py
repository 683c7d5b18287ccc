"""Detections as detectors give them: boxes clustered around objects; and cases that go wrong elsewhere."""

from dataclasses import dataclass

import numpy as np


def clustered_detections(n, classes, seed=0, canvas=(1333, 800), dtype="float32", id_dtype="int64"):
    """Boxes (n, 4), scores (n,) and class ids (n,) of about 60 boxes an object.

    An object has a centre, a log-normal size and a class; a box differs from its object a little in place
    and size, and one time in five in class. Some reach beyond the canvas.
    """
    rng = np.random.default_rng(seed)
    objects = max(n // 60, 1)
    centres = rng.uniform(0, canvas, (objects, 2))
    sizes = np.exp(rng.normal(4, 0.8, (objects, 2)))
    object_classes = rng.integers(0, classes, objects)

    object_of = rng.integers(0, objects, n)
    size = sizes[object_of] * np.exp(rng.normal(0, 0.15, (n, 2)))
    centre = centres[object_of] + rng.normal(0, 0.12, (n, 2)) * size
    boxes = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    class_ids = np.where(rng.random(n) < 0.8, object_classes[object_of], rng.integers(0, classes, n))
    scores = rng.uniform(0.05, 1, n)
    return boxes.astype(dtype), scores.astype(dtype), class_ids.astype(id_dtype)


@dataclass(frozen=True)
class Case:
    """A detector: how many classes it tells apart, on which canvas, in which type."""

    name: str
    classes: int
    canvas: tuple = (1333, 800)
    dtype: str = "float32"

    def detections(self, n, seed=0):
        return clustered_detections(n, self.classes, seed, self.canvas, self.dtype)

    def __str__(self):
        return f"{self.name}-{self.dtype}"


# Where shifting each class to a place of its own gives another answer than comparing the classes.
CASES = [
    Case("rpn-5-levels", 5),
    Case("coco-91", 91),
    Case("ultralytics-80", 80),
    Case("lvis-1203", 1203),
    Case("lvis-1203-8192px", 1203, (8192, 4915)),
    Case("rpn-5-levels", 5, dtype="float16"),
    Case("coco-91", 91, dtype="float16"),
]
