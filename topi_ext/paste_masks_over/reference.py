"""What `paste_masks_over` answers, in NumPy."""

from __future__ import annotations

import numpy as np

from ..paste_masks.reference import grown, paste_masks


def paste_masks_over(
    masks: np.ndarray, boxes: np.ndarray, images: np.ndarray, *, threshold: float | None = None
) -> np.ndarray:
    """The arguments and the result of `topi_ext.paste_masks_over`, as arrays."""
    height, width = images.shape[2:]
    pasted, result = paste_masks(masks, boxes, (height, width), threshold=threshold), images.copy()
    for box, image, over in zip(boxes.astype("float32"), pasted[:, 0], result[:, 0]):
        if np.isfinite(box).all():
            left, top, right, bottom = grown(box, masks.shape[-1])
            inside = slice(max(top, 0), max(bottom + 1, 0)), slice(max(left, 0), max(right + 1, 0))
            over[inside] = image[inside]
    return result
