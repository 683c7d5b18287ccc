"""The Relay operator `topi_ext.preprocess`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, no_type_check

from .. import _register
from .._register import known
from .._tvm import (
    Attrs,
    Expr,
    TensorType,
    TupleType,
    Type,
    call,
    convert,
    dtype_of,
    script,
    te,
    tir,
    tuple_of,
)
from .._whole import whole
from .problem import Problem

if TYPE_CHECKING:
    from .._types import int64, output_tensor

NAME = "topi_ext.preprocess"
IMAGE_TYPES = ("uint8", "float32", "float16")
TYPES = ("float32", "float16")
LAYOUTS = ("NCHW", "NHWC")
MAX_CHANNELS = 4
MAX_APART = 32  # tensors of images: the kernel has code for each
MAX_SIDE = 2**14  # a side: places between pixels are exact in int32, and it has the number of each element
ARGUMENTS = {"image": "(N, H, W, C) or (N, C, H, W), uint8, float32 or float16; or a tuple of such."}


def preprocess(
    image: Expr | Sequence[Expr],
    size: Sequence[int],
    padded_size: Sequence[int] | None = None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    swap_channels: bool = False,
    image_layout: str = "NHWC",
    layout: str = "NCHW",
    dtype: str = "float32",
    padded_channels: int | None = None,
) -> Expr:
    """Turn camera images into the input of a network: resize, normalize and pad them.

    Parameters
    ----------
    image : Expr or sequence of Expr
        Images of 1 to 4 channels, uint8, float32 or float16. N may be known only at run time, and be 0. With
        up to 32 of them, of any sizes and types, whose N is known, the result has the images of all.
    size : (int, int)
        Height and width to resize to.
    padded_size : (int, int), optional
        Height and width of the result, at least `size`, which is the default. Zeros are added at the right
        and at the bottom.
    mean, std : sequence of float
        Per channel of the result, in the unit of the pixels, which for uint8 is 0 to 255: torchvision's mean
        of 0.485 is then 0.485 * 255.
    swap_channels : bool
        Whether the channels of the image are reversed: RGB to BGR or back.
    image_layout, layout : "NCHW" or "NHWC"
        Of the image, and of the result.
    dtype : "float32" or "float16"
        Of the result.
    padded_channels : int, optional
        Channels of the result, C: as many as `mean` has, which is the default, or 4, of which the last ones
        are zeros. Pixels of 4 channels are aligned in memory.

    Returns
    -------
    images : Expr
        (N, C, *padded_size) or (N, *padded_size, C).

    Convention
    ----------
    - The image is resized bilinearly, without antialiasing, with pixel centers at half-integers: pixel i of n
      is sampled at `max((i + 0.5) * length / n - 0.5, 0)`, clipped to the last pixel. This is
      `torch.nn.functional.interpolate` with `align_corners=False` and a size (or a scale that is recomputed,
      as in torchvision's detectors). Sample positions are exact; torch rounds them to float32.
    - Then `(pixel - mean) / std`, then zeros. Everything is computed in float32, and rounded once.
    - A uint8 image is not rounded after it is resized; OpenCV would round it.
    - A pixel that is NaN or infinite may turn its neighbors into NaN.

    >>> from topi_ext.preprocess import reference
    >>> image = np.uint8([[0, 100], [100, 200]]).reshape(1, 2, 2, 1)
    >>> print(reference.preprocess(image, (4, 4), (4, 5), mean=[0], std=[100])[0, 0])
    [[0.   0.25 0.75 1.   0.  ]
     [0.25 0.5  1.   1.25 0.  ]
     [0.75 1.   1.5  1.75 0.  ]
     [1.   1.25 1.75 2.   0.  ]]
    """
    size, padded_size = (tuple(map(int, lengths)) for lengths in (size, padded_size or size))
    for name, lengths in (("size", size), ("padded_size", padded_size)):
        if len(lengths) != 2 or min(lengths) < 1 or max(lengths) > MAX_SIDE:
            raise ValueError(f"preprocess: {name} must be two numbers from 1 to {MAX_SIDE}, not {lengths}")
    if any(padded < length for length, padded in zip(size, padded_size)):
        raise ValueError(f"preprocess: padded_size {padded_size} is smaller than size {size}")
    mean, std = ([float(value) for value in values] for values in (mean, std))
    if len(mean) != len(std) or not 1 <= len(mean) <= MAX_CHANNELS:
        raise ValueError(
            f"preprocess: mean and std must have a number for each of 1 to {MAX_CHANNELS} channels, "
            f"not {mean} and {std}"
        )
    if not all(map(math.isfinite, mean + std)) or 0 in std:
        raise ValueError(f"preprocess: mean and std must be finite, and std not 0, not {mean} and {std}")
    for name, given in (("image_layout", image_layout), ("layout", layout)):
        if given not in LAYOUTS:
            raise ValueError(f"preprocess: {name} must be {' or '.join(LAYOUTS)}, not {given!r}")
    if dtype not in TYPES:
        raise ValueError(f"preprocess: dtype must be {' or '.join(TYPES)}, not {dtype!r}")
    padded_channels = (
        len(mean) if padded_channels is None else whole("preprocess: padded_channels", padded_channels)
    )
    if padded_channels not in (len(mean), MAX_CHANNELS):
        raise ValueError(
            f"preprocess: padded_channels must be {MAX_CHANNELS}, or {len(mean)} as mean has, "
            f"not {padded_channels}"
        )
    images = [image] if isinstance(image, Expr) else list(image)
    if not 1 <= len(images) <= MAX_APART:
        raise ValueError(f"preprocess: there must be 1 to {MAX_APART} tensors of images, not {len(images)}")
    return call(
        NAME,
        images if len(images) == 1 else [tuple_of(images)],
        size=size,
        padded_size=padded_size,
        mean=mean,
        std=std,
        swap_channels=int(swap_channels),
        image_layout=image_layout,
        layout=layout,
        dtype=dtype,
        padded_channels=padded_channels,
    )


# --- types and shapes


def _type_relation(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of the image is not known."""
    images = types[0].fields if isinstance(types[0], TupleType) else types[:1]
    if not all(isinstance(image, TensorType) for image in images):
        return None
    problem, *_ = (problem_of(image, attrs) for image in images)
    counts = [image.shape[0] for image in images]
    if len(counts) > 1 and None in map(known, counts):
        _refuse("where there are several tensors of images, N must be known of each")
    return TensorType([sum(counts[1:], counts[0]), *problem.shape], problem.dtype)


def problem_of(image: TensorType | te.Tensor, attrs: Attrs) -> Problem:
    """The problem for an image given as a type or tensor; refuses what the operator does not accept."""
    layout, channels = str(attrs["image_layout"]), len(attrs["mean"])
    if dtype_of(image) not in IMAGE_TYPES:
        _refuse(f"image must be of type {', '.join(IMAGE_TYPES)}, not {dtype_of(image)}")
    if len(image.shape) != 4:
        _refuse(f"image must have the shape ({', '.join(layout)}), not {image.shape}")
    extents = dict(zip(layout, map(known, image.shape)))
    if extents["C"] != channels:
        _refuse(f"image must have the {channels} channels of mean and std in {layout}, not {image.shape}")
    height, width = extents["H"], extents["W"]
    if not (height and width and min(height, width) >= 1 and max(height, width) <= MAX_SIDE):
        _refuse(f"height and width of image must be known, and from 1 to {MAX_SIDE}, not {image.shape}")
    return Problem(
        given=(height, width),
        size=tuple(map(int, attrs["size"])),
        padded_size=tuple(map(int, attrs["padded_size"])),
        mean=tuple(map(float, attrs["mean"])),
        std=tuple(map(float, attrs["std"])),
        swap_channels=bool(attrs["swap_channels"]),
        image_layout=layout,
        layout=str(attrs["layout"]),
        dtype=str(attrs["dtype"]),
        padded_channels=int(attrs["padded_channels"]),
    )


def _refuse(reason: str) -> NoReturn:
    _register.refuse(NAME, reason)


@script
@no_type_check
def _shapes(image, first, second, third):
    images = output_tensor((4,), "int64")
    images[0] = image[0]
    images[1] = int64(first)
    images[2] = int64(second)
    images[3] = int64(third)
    return images


def _shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    channels, (height, width) = int(attrs["padded_channels"]), map(int, attrs["padded_size"])
    extents = {"C": channels, "H": height, "W": width}
    (images,) = inputs  # of several, the shape is known
    return [_shapes(images, *(convert(extents[axis]) for axis in str(attrs["layout"])[1:]))]


# --- kernels


def _compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    return [kernels.preprocess([problem_of(image, attrs) for image in inputs], inputs)]


_register.register(
    NAME,
    "Turn camera images into the input of a network: resize, normalize and pad them.",
    ARGUMENTS,
    _type_relation,
    _shape_function,
    _register.kernels_in(__package__),
    _compute,
)
