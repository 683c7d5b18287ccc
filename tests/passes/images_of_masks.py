"""Graphs written by hand: what an NMS keeps of an image's boxes, and masks pasted for it."""

import numpy as np

import topi_ext
from tests.helpers import module
from tests.ops.detections import clustered_detections
from tvm_passes.detection.selection import select

from tvm import relay

N, MAX_KEPT = 60, 9
CANVAS = (50, 40)


class Image:
    """The variables `boxes`, `scores` and `ids`, and the indices of what an NMS keeps of them."""

    def __init__(self, name="", most=MAX_KEPT):
        self.boxes = relay.var(f"boxes{name}", shape=(N, 4))
        self.scores = relay.var(f"scores{name}", shape=(N,))
        self.ids = relay.var(f"ids{name}", shape=(N,), dtype="int64")
        self.inputs = self.boxes, self.scores, self.ids
        self.kept = select(*self.inputs, 0.5, score_threshold=0.25, max_output_size=most)

    def rows(self, tensor):
        """The rows of what is kept."""
        return relay.take(tensor, self.kept, axis=0, mode="clip")

    def pasted(self, **options):
        masks = np.random.default_rng(3).random((N, 1, 5, 5), "float32") + np.float32(0.01)
        masks = self.rows(relay.const(masks))
        return topi_ext.paste_masks(masks, self.rows(self.boxes), CANVAS[::-1], **options)


def with_masks(finish=lambda images: images, **options):
    """A module that returns the boxes that are kept, and what `finish` makes of their masks."""
    image = Image()
    finished = finish(image.pasted(**options))
    finished = finished if isinstance(finished, list) else [finished]
    return module(*image.inputs, relay.Tuple([image.rows(image.boxes), *finished]))


def a_image(seed=0, scale=1.0):
    """Inputs for an image; a `scale` of 0.3 leaves few scores above the threshold, of 0.01 none."""
    boxes, scores, ids = clustered_detections(N, 3, seed, CANVAS)
    return boxes / 5, scores * np.float32(scale), ids
