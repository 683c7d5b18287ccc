"""What COCO's tools take of a network's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .tensors import NUMPY, TORCH, Tensor, kind_of


def coco_masks(encoded: Tensor, image_size: Sequence[int]) -> list[dict[str, Any]]:
    """The masks as `pycocotools.mask.encode` gives them: a dict of `size` and `counts` for each.

    `encoded` is what `topi_ext.encode_masks` computes in the form "rle", and so what networks return after
    `ReturnEncodedMasks`: (N, capacity), of torch, NumPy or TVM. `image_size` is the height and width of the
    image. Raises ValueError for a mask that did not fit.
    """
    kind = kind_of(encoded)
    if kind is not NUMPY and kind is not None:
        encoded = (encoded.cpu() if kind is TORCH else encoded).numpy()
    if kind is None or encoded.ndim != 2 or encoded.dtype != "uint8":
        raise TypeError("coco_masks: the masks must be a uint8 tensor (N, capacity), as of encode_masks")
    capacity = encoded.shape[1]
    too_long = np.flatnonzero(encoded[:, 0] == 0)
    if len(too_long):
        raise ValueError(
            f"coco_masks: {len(too_long)} of {len(encoded)} masks take more than {capacity} bytes, the first "
            f"is {too_long[0]}: encode them with a larger capacity"
        )
    # Each ends at its first 0, which is near: NumPy's strings would be searched from the far end.
    rows, size = encoded.tobytes(), [int(length) for length in image_size]
    masks = []
    for start in range(0, len(rows), capacity):
        end = rows.find(b"\0", start, start + capacity)
        string = rows[start : start + capacity if end < 0 else end]
        masks.append({"size": list(size), "counts": string})
    return masks
