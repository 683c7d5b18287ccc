"""The Relay operators `topi_ext.rasterize_masks` and `topi_ext.rasterize_map`, and the functions for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, const, convert, script, shared_extent, te, tir
from .._whole import whole
from .kernel import Image

if TYPE_CHECKING:
    from .._types import int64, output_tensor

MASKS, MAP = "topi_ext.rasterize_masks", "topi_ext.rasterize_map"
MAX_SIDE = 2**14  # side of an image, in pixels
FLOATS, OFFSETS, STYLES = ("float32", "float64"), ("int32", "int64"), ("int8", "int32")
MODES, LAYOUTS, DTYPES, KINDS = ("union", "parity"), ("NHWC", "NCHW"), ("float32", "uint8"), ("fill", "line")


def rasterize_boxes(
    boxes: Expr,
    layers: Expr,
    matrices: Expr,
    image_size: Sequence[int],
    *,
    mode: str = "union",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Expr:
    """Draw boxes as masks: for each sample, an image of several layers, such as the frames of a history.

    Parameters
    ----------
    boxes : Expr
        (N, 5), float32 or float64: center x and y, length, width, and yaw in radians, for all samples. Or
        (N, 6), with the cosine and the sine of the yaw. N may be 0, and known only at run time.
    layers : Expr
        (B, L + 1), int32 or int64: layer l of sample b shows the boxes from `layers[b, l]` up to
        `layers[b, l + 1]`; samples may share boxes.
    matrices : Expr
        (B, 3, 3), float32 or float64: per sample, from the coordinates of boxes to pixels. The last row is
        not used.
    image_size : (int, int)
        Height and width of the images.
    mode : {"union", "parity"}
        What happens to a pixel that several boxes cover. "parity" leaves it empty if their number is even, as
        one call of `cv2.fillPoly` for all boxes does, and so l5kit.
    layout : {"NHWC", "NCHW"}
    dtype : {"float32", "uint8"}
        Of the result: from 0 to 1, or from 0 to 255.

    Returns
    -------
    images : Expr
        (B, height, width, L) or (B, L, height, width).

    Convention
    ----------
    - The result is bit-identical to OpenCV's `cv2.fillPoly` with `lineType=cv2.LINE_AA, shift=9` on corners
      `(pixels * 512).astype(int)`. The center of the first pixel is (0, 0); y points down.
    - Coordinates are computed in float64, each product and each sum rounded on its own. A box with a corner
      that is not finite is not drawn, nor is one turned by more than a million radians. A corner farther than
      16383 pixels from the first pixel is clipped to that: OpenCV's own sums overflow a little farther out.
    - Offsets are clipped to the number of shapes, and a layer that ends before it begins is empty.

    >>> from topi_ext.rasterize import reference
    >>> boxes, layers = np.float32([[3, 2, 4, 2, 0]]), np.array([[0, 1]])
    >>> images = reference.rasterize_boxes(boxes, layers, np.eye(3)[None], (5, 7), dtype="uint8")
    >>> print(images[0, :, :, 0])
    [[  0  25  51  53  53  27   0]
     [ 25 255 255 255 255 255  31]
     [ 51 255 255 255 255 255  58]
     [ 27 209 233 232 234 212  33]
     [  0  31  58  58  58  33   0]]
    """
    return _masks("boxes", mode, boxes, const(0), layers, matrices, image_size, layout, dtype)


def rasterize_polygons(
    points: Expr,
    offsets: Expr,
    layers: Expr,
    matrices: Expr,
    image_size: Sequence[int],
    *,
    mode: str = "union",
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Expr:
    """Draw polygons as masks: `rasterize_boxes` for any number of corners.

    Polygon n has the corners `points[offsets[n]:offsets[n + 1]]`; `points` is (P, 2), float32 or float64,
    `offsets` (N + 1,), int32 or int64. A polygon is filled by the even-odd rule.

    >>> from topi_ext.rasterize import reference
    >>> points, offsets = np.float32([[1, 1], [5, 1], [1, 5]]), np.array([0, 3])
    >>> layers, matrices = np.array([[0, 1]]), np.eye(3)[None]
    >>> images = reference.rasterize_polygons(points, offsets, layers, matrices, (7, 7), dtype="uint8")
    >>> print(images[0, :, :, 0])
    [[  0  25  51  53  53  27   0]
     [ 25 255 255 255 255 255  42]
     [ 51 255 255 255 255 100   0]
     [ 53 255 255 255  80   0   0]
     [ 53 255 255  80   0   0   0]
     [ 61 229  68   0   0   0   0]
     [  4   2   0   0   0   0   0]]
    """
    return _masks("polygons", mode, points, offsets, layers, matrices, image_size, layout, dtype)


def rasterize_polylines(
    points: Expr,
    offsets: Expr,
    layers: Expr,
    matrices: Expr,
    image_size: Sequence[int],
    *,
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Expr:
    """Draw lines of one pixel as masks, as `cv2.polylines` does, with the arguments of `rasterize_polygons`.

    Lines are open; to close one, repeat its first point at the end.

    >>> from topi_ext.rasterize import reference
    >>> points, offsets = np.float32([[1, 1], [5, 1], [1, 5]]), np.array([0, 3])
    >>> layers, matrices = np.array([[0, 1]]), np.eye(3)[None]
    >>> images = reference.rasterize_polylines(points, offsets, layers, matrices, (7, 7), dtype="uint8")
    >>> print(images[0, :, :, 0])
    [[  0  25  51  53  53  27   0]
     [  0 143 230 232 236 227  42]
     [  0  29  58 113 255 100   0]
     [  0   0  72 255  80   0   0]
     [  0  72 255  80   0   0   0]
     [ 38 191  42   0   0   0   0]
     [  4   0   0   0   0   0   0]]
    """
    return _masks("polylines", "union", points, offsets, layers, matrices, image_size, layout, dtype)


def rasterize_map(
    points: Expr,
    offsets: Expr,
    styles: Expr,
    matrices: Expr,
    image_size: Sequence[int],
    *,
    palette: Iterable[tuple[Sequence[int], str]],
    background: Sequence[int] = (255, 255, 255),
    layout: str = "NHWC",
    dtype: str = "float32",
) -> Expr:
    """Draw a map in color, as each sample sees it; all samples share the points of its shapes.

    Parameters
    ----------
    points, offsets : Expr
        The shapes, as `rasterize_polygons` takes them.
    styles : Expr
        (N,) or, where samples differ, (B, N), int8 or int32: the index in `palette` of each shape's style. A
        shape with an index out of range is not drawn.
    matrices, image_size, layout, dtype
        As for `rasterize_boxes`.
    palette : sequence of (colour, kind)
        A style is a color, with a number from 0 to 255 for each channel of the images, and "fill" for a
        polygon or "line" for an open line. Shapes are drawn in the order of styles, and within a style in
        their own order; later ones cover earlier ones.
    background : sequence of int
        The color of the empty image.

    Returns
    -------
    images : Expr
        (B, height, width, C) or (B, C, height, width).

    Convention
    ----------
    - As for `rasterize_boxes`. Polygons are filled one by one.
    - Shapes with bounds outside the image are skipped, so a large map costs little.

    >>> from topi_ext.rasterize import reference
    >>> points, offsets, styles = np.float32([[1, 1], [5, 1], [1, 5]]), np.array([0, 3]), np.int8([0])
    >>> palette = [((10, 20, 30), "fill")]
    >>> options = {"palette": palette, "background": (99, 99, 99), "dtype": "uint8"}
    >>> images = reference.rasterize_map(points, offsets, styles, np.eye(3)[None], (7, 7), **options)
    >>> print(images[0, :, :, 0])
    [[99 90 82 80 80 89 99]
     [90 10 10 10 10 10 85]
     [82 10 10 10 10 64 99]
     [80 10 10 10 71 99 99]
     [80 10 10 71 99 99 99]
     [77 19 75 99 99 99 99]
     [97 99 99 99 99 99 99]]
    """
    palette = [(_color(color), kind) for color, kind in palette]
    background = _color(background)
    if not palette or not background or any(len(color) != len(background) for color, _ in palette):
        raise ValueError(f"{MAP}: palette and background must have the same number of channels, at least one")
    for _, kind in palette:
        _require(MAP, "a kind of style", kind, KINDS)
    return call(
        MAP,
        [points, offsets, styles, matrices],
        **_image(MAP, image_size, layout, dtype),
        colors=[number for color, _ in palette for number in color],
        fills=[int(kind == "fill") for _, kind in palette],
        background=background,
    )


def _masks(
    kind: str,
    mode: str,
    shapes: Expr,
    offsets: Expr,
    layers: Expr,
    matrices: Expr,
    image_size: Sequence[int],
    layout: str,
    dtype: str,
) -> Expr:
    _require(MASKS, "mode", mode, MODES)
    image = _image(MASKS, image_size, layout, dtype)
    return call(MASKS, [shapes, offsets, layers, matrices], kind=kind, mode=mode, **image)


def _image(name: str, image_size: Sequence[int], layout: str, dtype: str) -> dict[str, Any]:
    height, width = (whole("rasterize: image_size", length) for length in image_size)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"{name}: images must be 1 to {MAX_SIDE} pixels high and wide, not {height}x{width}")
    _require(name, "layout", layout, LAYOUTS)
    _require(name, "dtype", dtype, DTYPES)
    return {"image_size": [height, width], "layout": layout, "dtype": dtype}


def _require(name: str, what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {what} must be {' or '.join(choices)}, not {value}")


def _color(color: Sequence[int]) -> list[int]:
    color = [whole("rasterize: color", number) for number in color]
    if not all(0 <= number <= 255 for number in color):
        raise ValueError(f"{MAP}: a color must have numbers from 0 to 255, not {color}")
    return color


# --- types


def _masks_type(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result, or None while that of an argument is not known."""
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    shapes, offsets, layers, matrices = types
    if attrs["kind"] == "boxes":
        _check(MASKS, "boxes", shapes, FLOATS, "N", (5, 6))
    else:
        _check(MASKS, "points", shapes, FLOATS, "P", (2,))
        _check(MASKS, "offsets", offsets, OFFSETS, "N + 1")
    _check(MASKS, "layers", layers, OFFSETS, "B", "L + 1")
    _check(MASKS, "matrices", matrices, FLOATS, "B", (3,), (3,))
    count = (known(layers.shape[1]) or 0) - 1
    if count < 1:
        _register.refuse(
            MASKS, f"the number of layers must be known, and at least 1: layers is {layers.shape}"
        )
    return _images_type(MASKS, attrs, "layers", layers.shape[0], matrices.shape[0], count)


def _map_type(types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    points, offsets, styles, matrices = types
    _check(MAP, "points", points, FLOATS, "P", (2,))
    _check(MAP, "offsets", offsets, OFFSETS, "N + 1")
    of_sample = len(styles.shape) == 2
    _check(MAP, "styles", styles, STYLES, *(["B", "N"] if of_sample else ["N"]))
    _check(MAP, "matrices", matrices, FLOATS, "B", (3,), (3,))
    given, bounds = known(styles.shape[-1]), known(offsets.shape[0])
    if given is not None and bounds is not None and given + 1 != bounds:
        _register.refuse(MAP, f"there must be a style for each shape: {given} for {bounds - 1}")
    samples = styles.shape[0] if of_sample else matrices.shape[0]
    return _images_type(MAP, attrs, "styles", samples, matrices.shape[0], len(attrs["background"]))


def _check(
    name: str, argument: str, type_: TensorType, dtypes: Sequence[str], *axes: str | tuple[int, ...]
) -> None:
    """Check a type; an axis is given by the name of its length, or by the lengths that it may have."""
    if type_.dtype not in dtypes:
        _register.refuse(name, f"{argument} must be of type {' or '.join(dtypes)}, not {type_.dtype}")
    lengths = zip(axes, type_.shape)
    fits = all(isinstance(axis, str) or known(length) in axis for axis, length in lengths)
    if len(type_.shape) != len(axes) or not fits:
        names = [axis if isinstance(axis, str) else " or ".join(map(str, axis)) for axis in axes]
        shape = ", ".join(names) + ("," if len(names) == 1 else "")
        _register.refuse(name, f"{argument} must have the shape ({shape}), not {type_.shape}")


def _images_type(
    name: str,
    attrs: Attrs,
    argument: str,
    samples: tir.PrimExpr,
    matrices: tir.PrimExpr,
    channels: int,
) -> TensorType:
    counts = known(samples), known(matrices)
    if None not in counts and counts[0] != counts[1]:
        _register.refuse(name, f"there are {argument} of {counts[0]} samples, but matrices of {counts[1]}")
    samples = shared_extent(name, [samples, matrices])
    height, width = map(int, attrs["image_size"])
    if height * width * channels >= 2**31:
        _register.refuse(name, f"a sample must have under 2**31 elements, not {height}x{width}x{channels}")
    shape = [height, width, channels] if attrs["layout"] == "NHWC" else [channels, height, width]
    return TensorType([samples, *shape], attrs["dtype"])


# --- shapes at run time


@script
@no_type_check
def _mask_shapes(layers, matrices, height, width, y, x, channel):
    images = output_tensor((4,), "int64")
    assert layers[0] == matrices[0], (
        "topi_ext.rasterize_masks: layers and matrices differ in their number of samples"
    )
    images[0] = matrices[0]
    images[y] = int64(height)
    images[x] = int64(width)
    images[channel] = layers[1] - int64(1)
    return images


@script
@no_type_check
def _map_shapes(offsets, styles, matrices, of_sample, channels, height, width, y, x, channel):
    images = output_tensor((4,), "int64")
    assert offsets[0] == styles[of_sample] + int64(1), "topi_ext.rasterize_map: each shape must have a style"
    if of_sample == 1:
        assert styles[0] == matrices[0], (
            "topi_ext.rasterize_map: styles and matrices differ in their number of samples"
        )
    images[0] = matrices[0]
    images[y] = int64(height)
    images[x] = int64(width)
    images[channel] = int64(channels)
    return images


def _mask_shape_function(
    attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]
) -> list[te.Tensor]:
    return [_mask_shapes(*inputs[2:], *map(convert, _sides_and_axes(attrs)))]


def _map_shape_function(
    attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]
) -> list[te.Tensor]:
    of_sample = int(inputs[2].shape[0]) - 1
    constants = [of_sample, len(attrs["background"]), *_sides_and_axes(attrs)]
    return [_map_shapes(*inputs[1:], *map(convert, constants))]


def _sides_and_axes(attrs: Attrs) -> list[int]:
    """Height, width, and the indices of the axes of height, width and channels."""
    return [*map(int, attrs["image_size"]), *(attrs["layout"].index(axis) for axis in "HWC")]


# --- kernels


def _compute_masks(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    return [kernels.rasterize_masks(*inputs, _image_of(attrs), kind=attrs["kind"], mode=attrs["mode"])]


def _compute_map(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    channels = len(attrs["background"])
    colors = [int(number) for number in attrs["colors"]]
    palette = [
        (tuple(colors[channels * style :][:channels]), "fill" if fill else "line")
        for style, fill in enumerate(attrs["fills"])
    ]
    background = [int(number) for number in attrs["background"]]
    return [kernels.rasterize_map(*inputs, _image_of(attrs), palette=palette, background=background)]


def _image_of(attrs: Attrs) -> Image:
    height, width = map(int, attrs["image_size"])
    return Image(height, width, str(attrs["layout"]), str(attrs["dtype"]))


SHAPES = {
    "offsets": "(N + 1,), int32 or int64: the index in points at which each shape begins.",
    "matrices": "(B, 3, 3), float32 or float64: from the coordinates of points to pixels.",
}
_register.register(
    MASKS,
    "Draw shapes as masks.",
    {
        "shapes": "Boxes, (N, 5) or (N, 6), or points, (P, 2); float32 or float64.",
        "offsets": SHAPES["offsets"] + " Not used for boxes.",
        "layers": "(B, L + 1), int32 or int64: the index of the shape at which each layer begins.",
        "matrices": SHAPES["matrices"],
    },
    _masks_type,
    _mask_shape_function,
    _register.kernels_in(__package__),
    _compute_masks,
)
_register.register(
    MAP,
    "Draw a map in color, as each sample sees it.",
    {
        "points": "(P, 2), float32 or float64.",
        "offsets": SHAPES["offsets"],
        "styles": "(N,) or (B, N), int8 or int32: the index of each shape's style in the palette.",
        "matrices": SHAPES["matrices"],
    },
    _map_type,
    _map_shape_function,
    _register.kernels_in(__package__),
    _compute_map,
)
