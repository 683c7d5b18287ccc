"""The Relay operator `topi_ext.paste_masks`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, convert, script, shared_extent, te, tir
from .._types import IntExpr
from .._whole import whole

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.paste_masks"
FLOATS = ("float32", "float16")
ARGUMENTS = {
    "masks": "(N, 1, M, M), float32 or float16.",
    "boxes": "(N, 4): x1, y1, x2, y2; float32 or float16.",
}


def paste_masks(
    masks: Expr, boxes: Expr, image_size: Sequence[int], *, threshold: float | None = None
) -> Expr:
    """Scale each mask to its box and paste it into an empty image.

    Parameters
    ----------
    masks : Expr
        (N, 1, M, M), float32 or float16, such as probabilities. N may be 0, and known only at run time.
    boxes : Expr
        (N, 4), float32 or float16: the corners x1, y1, x2, y2 in the image.
    image_size : (int, int)
        Height and width of the images.
    threshold : float, optional
        If given, the result is 1 where a pixel is at least this, else 0.

    Returns
    -------
    images : Expr
        (N, 1, height, width), float32, or with a threshold uint8, 0 or 1.

    Convention
    ----------
    - As torchvision's `paste_masks_in_image`: a mask is padded with one pixel of zeros on each side, and its
      box is scaled about its center accordingly, by (M + 2) / M.
    - Then the corners are truncated toward zero, and both belong to the box: it is x2 - x1 + 1 pixels wide.
      The mask is scaled to that bilinearly, `align_corners=False`, in float32. Pixels outside the box are 0.
    - The image stays empty for a box entirely outside it, at which torchvision fails, for one with
      x2 + 1 <= x1 or y2 + 1 <= y1 after truncation, and for one with a coordinate that is NaN or infinite.
      Coordinates beyond 1e9 are clipped to that.

    >>> from topi_ext.paste_masks import reference
    >>> mask, box = np.ones((1, 1, 2, 2), "float32"), np.float32([[2, 2, 4, 4]])
    >>> print(reference.paste_masks(mask, box, (6, 6), threshold=0.6)[0, 0])
    [[0 0 0 0 0 0]
     [0 0 0 0 0 0]
     [0 0 0 1 0 0]
     [0 0 1 1 1 0]
     [0 0 0 1 0 0]
     [0 0 0 0 0 0]]
    """
    height, width = checked_options("paste_masks", image_size, threshold)
    return call(
        NAME,
        [masks, boxes],
        image_size=[height, width],
        threshold=float(threshold or 0),
        has_threshold=int(threshold is not None),
    )


def checked_options(name: str, image_size: Sequence[int], threshold: float | None) -> tuple[int, int]:
    """The height and width of images; raises an error for those, or a threshold, that no masks can have."""
    height, width = (
        length if isinstance(length, tir.Var) else whole(f"{name}: image_size", length)
        for length in image_size
    )
    is_known = not isinstance(height, tir.Var) and not isinstance(width, tir.Var)
    if is_known and (min(height, width) < 1 or height * width >= 2**31):
        raise ValueError(f"{name}: the image must have from 1 to 2**31 - 1 pixels, not {height}x{width}")
    checked_threshold(name, threshold)
    return height, width


def checked_threshold(name: str, threshold: float | None) -> None:
    """Raises an error for a threshold that no masks can have."""
    if threshold is not None and math.isnan(threshold):
        raise ValueError(f"{name}: the threshold is NaN")


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    count = number_of_masks(NAME, types)
    dtype = "uint8" if attrs["has_threshold"] else "float32"
    return None if count is None else TensorType([count, 1, *attrs["image_size"]], dtype)


def number_of_masks(operator: str, types: Sequence[Type]) -> IntExpr | None:
    """N, of the types of masks and boxes, which are checked; None while one of them is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    refuse = partial(_register.refuse, operator)
    masks, boxes = types
    for name, type_ in zip(ARGUMENTS, types):
        if type_.dtype not in FLOATS:
            refuse(f"{name} must be of type {' or '.join(FLOATS)}, not {type_.dtype}")
    side = known(masks.shape[-1]) if len(masks.shape) == 4 else None
    if not side or known(masks.shape[1]) not in (1, None) or known(masks.shape[2]) not in (side, None):
        refuse(f"masks must have the shape (N, 1, M, M) with a known M above 0, not {masks.shape}")
    if len(boxes.shape) != 2 or known(boxes.shape[1]) not in (4, None):
        refuse(f"boxes must have the shape (N, 4), not {boxes.shape}")
    counts = [known(type_.shape[0]) for type_ in types]
    if None not in counts and counts[0] != counts[1]:
        refuse(f"there must be as many masks as boxes: masks has {counts[0]}, boxes has {counts[1]}")
    return shared_extent(operator, [type_.shape[0] for type_ in types])


@script
@no_type_check
def _shapes(masks, boxes, height, width):
    images = output_tensor((4,), "int64")
    assert masks[0] == boxes[0], "topi_ext.paste_masks: there must be as many masks as boxes"
    assert masks[1] == int64(1), "topi_ext.paste_masks: masks must have the shape (N, 1, M, M)"
    assert masks[2] == masks[3], "topi_ext.paste_masks: masks must have the shape (N, 1, M, M)"
    assert boxes[1] == int64(4), "topi_ext.paste_masks: boxes must have the shape (N, 4)"
    images[0] = masks[0]
    images[1] = int64(1)
    images[2] = int64(height)
    images[3] = int64(width)
    return images


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    return [_shapes(*inputs, *map(convert, attrs["image_size"]))]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    image_size = [int(length) for length in attrs["image_size"]]
    threshold = float(attrs["threshold"]) if attrs["has_threshold"] else None
    return [kernels.paste_masks(*inputs, image_size, threshold)]


_register.register(
    NAME,
    "Scale each mask to its box and paste it into an empty image.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
