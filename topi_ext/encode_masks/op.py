"""The Relay operator `topi_ext.encode_masks`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, no_type_check

from .. import _register
from .._kernel import ceil_div
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, convert, script, shared_extent, te, tir
from .._whole import whole
from ..paste_masks.op import ARGUMENTS, checked_options, number_of_masks
from .kernel import default_capacity

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.encode_masks"
FORMS = ("rle", "bits")


def encode_masks(
    masks: Expr,
    boxes: Expr,
    image_size: Sequence[int],
    *,
    threshold: float = 0.5,
    form: str = "rle",
    capacity: int | None = None,
) -> Expr:
    """Paste each mask as `paste_masks` does, and give the image of 0 and 1 as run lengths or packed bits.

    Parameters
    ----------
    masks : Expr
        (N, 1, M, M), float32 or float16, such as probabilities. N may be 0, and known only at run time.
    boxes : Expr
        (N, 4), float32 or float16: the corners x1, y1, x2, y2 in the image.
    image_size : (int, int)
        Height and width of the images. Each may be a tir.Var, where a kernel is to serve all sizes.
    threshold : float
        A pixel is 1 where `paste_masks` gives at least this.
    form : "rle" or "bits"
        COCO's compressed run lengths, or a bit for each pixel.
    capacity : int, optional
        For run lengths: how many bytes there are for each mask. The default, 24 for each column of the image
        and 64 more, is enough for a mask that has at most four runs of ones in any column, in an image of up
        to 8192 rows.

    Returns
    -------
    encoded : Expr
        uint8. For run lengths (N, capacity): the bytes of each mask, then zeros. For bits
        (N, height, (width + 7) // 8).

    Convention
    ----------
    - The pixels are those of `topi_ext.paste_masks` with the same threshold, to the last bit. The images
      themselves are never stored.
    - Run lengths are the `counts` of `pycocotools.mask.encode`: columns one after the other, zeros first. No
      byte of them is 0, and they are never empty, so the first 0 is their end.
      `tvm_passes.runtime.coco_masks` makes COCO's dicts of them.
    - A mask that takes more bytes than there are is not cut: all its bytes are 0.
    - Bits are in the order of `numpy.packbits`: the first of eight pixels is the highest bit. The bits behind
      the last pixel of a row are 0.

    >>> from topi_ext.encode_masks import reference
    >>> mask, box = np.ones((1, 1, 2, 2), "float32"), np.float32([[2, 2, 4, 4]])
    >>> encoded = reference.encode_masks(mask, box, (6, 6), threshold=0.6, capacity=16)
    >>> print(encoded[0].tobytes())
    b'?1420N4\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    height, width = checked_options("encode_masks", image_size, threshold)
    check_form("encode_masks", form, capacity)
    capacity = default_capacity(width) if capacity is None else whole("encode_masks: capacity", capacity)
    return call(
        NAME,
        [masks, boxes],
        image_size=[height, width],
        threshold=float(threshold),
        form=form,
        encoded_shape=[capacity] if form == "rle" else [height, ceil_div(width, 8)],
    )


def check_form(caller: str, form: str, capacity: int | None) -> None:
    """Raise ValueError where there is no such form, or it has no such capacity."""
    if form not in FORMS:
        raise ValueError(f"{caller}: form must be {' or '.join(FORMS)}, not {form!r}")
    if capacity is not None and (form != "rle" or capacity < 1):
        raise ValueError(f"{caller}: capacity must be at least 1, and is for the form rle only")


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    count = number_of_masks(NAME, types)
    if count is None:
        return None
    of_each = [shared_extent(NAME, [length]) for length in attrs["encoded_shape"]]
    return TensorType([count, *of_each], "uint8")


@script
@no_type_check
def _shapes(masks, boxes, rank, first, last):
    encoded = output_tensor((rank,), "int64")
    assert masks[0] == boxes[0], "topi_ext.encode_masks: there must be as many masks as boxes"
    assert masks[1] == int64(1), "topi_ext.encode_masks: masks must have the shape (N, 1, M, M)"
    assert masks[2] == masks[3], "topi_ext.encode_masks: masks must have the shape (N, 1, M, M)"
    assert boxes[1] == int64(4), "topi_ext.encode_masks: boxes must have the shape (N, 4)"
    encoded[0] = masks[0]
    encoded[1] = int64(first)
    encoded[rank - 1] = int64(last)
    return encoded


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    of_each = attrs["encoded_shape"]
    return [_shapes(*inputs, *map(convert, (len(of_each) + 1, of_each[0], of_each[-1])))]


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    image_size, of_each = (
        [known(length) or length for length in attrs[name]] for name in ("image_size", "encoded_shape")
    )
    threshold = float(attrs["threshold"])
    if attrs["form"] == "bits":
        return [kernels.packed_bits(*inputs, image_size, threshold)]
    return [kernels.run_lengths(*inputs, image_size, threshold, *of_each)]


_register.register(
    NAME,
    "Paste each mask as `paste_masks` does, and give the image of 0 and 1 as run lengths or packed bits.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
