"""The Relay operator `topi_ext.paste_masks_over`, which has the kernels of `paste_masks`."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, te
from ..paste_masks import op as plain

NAME = "topi_ext.paste_masks_over"
ARGUMENTS = {**plain.ARGUMENTS, "images": "(N, 1, height, width), float32, or uint8 with a threshold."}


def paste_masks_over(masks: Expr, boxes: Expr, images: Expr, *, threshold: float | None = None) -> Expr:
    """`paste_masks` into images that are given, of which all pixels outside the boxes stay.

    So images can be made empty before masks and boxes are known. In a network that `tvm_passes.runtime`
    compiles for CUDA, the result is in the memory of `images` where nothing else reads it; elsewhere, it is
    copied.

    Parameters
    ----------
    masks, boxes, threshold
        As those of `paste_masks`. All extents are known at compile time.
    images : Expr
        (N, 1, height, width), of the type of the result.

    Returns
    -------
    images : Expr
        (N, 1, height, width), float32, or with a threshold uint8.

    >>> from topi_ext.paste_masks_over import reference
    >>> mask, box = np.ones((1, 1, 2, 2), "float32"), np.float32([[2, 2, 4, 4]])
    >>> images = np.full((1, 1, 6, 6), 7, "uint8")
    >>> print(reference.paste_masks_over(mask, box, images, threshold=0.6)[0, 0])
    [[7 7 7 7 7 7]
     [7 0 0 0 0 0]
     [7 0 0 1 0 0]
     [7 0 1 1 1 0]
     [7 0 0 1 0 0]
     [7 0 0 0 0 0]]
    """
    plain.checked_threshold("paste_masks_over", threshold)
    has_threshold = int(threshold is not None)
    return call(NAME, [masks, boxes, images], threshold=float(threshold or 0), has_threshold=has_threshold)


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    *of_masks, images = types
    count = plain.number_of_masks(NAME, of_masks)
    if count is None or not isinstance(images, TensorType):
        return None
    dtype = "uint8" if attrs["has_threshold"] else "float32"
    extents = [known(extent) for extent in images.shape]
    if images.dtype != dtype or len(extents) != 4 or extents[:2] != [known(count), 1] or None in extents:
        _register.refuse(
            NAME,
            f"images must have the shape ({count}, 1, height, width), known at compile time, and the type "
            f"{dtype}, not {images.shape} of {images.dtype}",
        )
    return images


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    masks, boxes, images = inputs
    image_size = [int(length) for length in images.shape[2:]]
    threshold = float(attrs["threshold"]) if attrs["has_threshold"] else None
    return [kernels.paste_masks(masks, boxes, image_size, threshold, images)]


_register.register(
    NAME,
    "Scale each mask to its box and paste it over an image.",
    ARGUMENTS,
    _type_relation,
    None,
    _register.kernels_in(plain.__package__),
    _compute,
)
