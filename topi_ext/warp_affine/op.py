"""The Relay operator `topi_ext.warp_affine`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, no_type_check

from .. import _register
from .._register import known
from .._tvm import Attrs, Expr, TensorType, Type, call, convert, dtype_of, script, te, tir
from .._types import Shape
from .._whole import whole
from .reference import MAX_COORDINATE, as_pixel

if TYPE_CHECKING:
    from .._types import const_range, int64, output_tensor

NAME = "topi_ext.warp_affine"
TYPES = ("uint8", "float16", "float32")
LABELS = ("int32", "int64")  # which are not to be mixed
CHOICES = {
    "mode": ("exact", "cv2_fixed"),
    "interpolation": ("bilinear", "nearest"),
    "border_mode": ("constant", "replicate", "reflect", "reflect_101"),
    "layout": ("NCHW", "NHWC"),
}
MAX_PIXELS = {"exact": int(MAX_COORDINATE), "cv2_fixed": 2**15 - 2}  # along a side
ARGUMENTS = {
    "data": "(N, C, H, W) or (N, H, W, C), uint8, float16 or float32; for nearest also int32 or int64.",
    "matrix": "(N, 2, 3), or (2, 3) for all images, float32 or float64.",
}


def warp_affine(
    data: Expr,
    matrix: Expr,
    out_size: Shape,
    *,
    inverse_map: bool = False,
    mode: str = "exact",
    interpolation: str = "bilinear",
    border_mode: str = "constant",
    border_value: float | Sequence[float] = 0,
    layout: str = "NCHW",
    out_dtype: str | None = None,
) -> Expr:
    """Warp each image by an affine map: rotate, scale, shear, flip, shift.

    Parameters
    ----------
    data : Expr
        Images, (N, C, H, W) or (N, H, W, C), uint8, float16 or float32; for "nearest" also int32 or int64, as
        label maps often are. The number of channels must be known; N, H and W may be known only at run
        time, and N may be 0.
    matrix : Expr
        (N, 2, 3), or (2, 3) for all images, float32 or float64.
    out_size : (int, int)
        Height and width of the result.
    inverse_map : bool
        Whether the matrix maps coordinates of the result to those of the data; else it maps the data to the
        result, and is inverted here.
    mode : "exact" or "cv2_fixed"
        Whether interpolation weights are exact, or in the fixed point of OpenCV 4.
    interpolation : "bilinear" or "nearest"
    border_mode : "constant", "replicate", "reflect" or "reflect_101"
        The pixels around an image abcd: the border value, aaa|abcd|ddd, cba|abcd|dcb or dcb|abcd|cba.
    border_value : number, or one for each channel
    layout : "NCHW" or "NHWC"
        Of the data and of the result.
    out_dtype : str, optional
        The type of the result, by default that of the data, else a float type.

    Returns
    -------
    warped : Expr
        (N, C, height, width) or (N, height, width, C).

    Convention
    ----------
    - `(x, y) = matrix @ (column, row, 1)`, with x to the right, y down, and (0, 0) the center of the first
      pixel.
    - The matrix is inverted as in OpenCV, which for a singular one takes every pixel from (0, 0). Coordinates
      are computed in float64, also from a float32 matrix.
    - Neighbors are found by floor(x), for `nearest` by floor(x + 0.5). Each of the four neighbors that lies
      outside the image is replaced according to `border_mode`; the border value is rounded to the type of the
      data.
    - Sums are float32, and rounded to uint8 with ties to even.
    - `cv2_fixed` rounds coordinates to 32nds of a pixel, as `cv2.warpAffine` does. For uint8 data its result
      is bit-identical to OpenCV 4, before it is converted to the requested type. Like OpenCV, it takes images
      of less than 32767 pixels a side.
    - If the matrix or its inverse has a coefficient that is NaN, infinite or beyond 2**500, the whole result
      is the border value. Coordinates beyond 1e9 are clipped to that in `exact`, and wrap around as in OpenCV
      in `cv2_fixed`. Nothing is read out of bounds.

    >>> from topi_ext.warp_affine import reference
    >>> data, matrix = np.uint8([[1, 2], [3, 4]]).reshape(1, 1, 2, 2), np.float32([[1, 0, 1], [0, 1, 0.5]])
    >>> print(reference.warp_affine(data, matrix, (3, 3))[0, 0])
    [[0 0 1]
     [0 2 3]
     [0 2 2]]
    """
    options = {
        "mode": mode,
        "interpolation": interpolation,
        "border_mode": border_mode,
        "layout": layout,
    }
    more = {"inverse_map": int(inverse_map)}
    return call_of(NAME, data, matrix, out_size, options, border_value, out_dtype, **more)


def call_of(
    operator: str,
    data: Expr,
    matrix: Expr,
    out_size: Shape,
    options: dict[str, str],
    border_value: float | Sequence[float],
    out_dtype: str | None,
    **more: Any,
) -> Expr:
    """A call of an operator that warps, with checked attributes; `more` are attributes of its own."""
    title = operator.split(".")[-1]
    for name, value in options.items():
        if value not in CHOICES[name]:
            raise ValueError(f"{title}: {name} must be one of {', '.join(CHOICES[name])}, not {value!r}")
    # topi_ext.torch gives variables, so that one kernel serves all sizes.
    out_size = [side if isinstance(side, tir.Var) else whole(f"{title}: out_size", side) for side in out_size]
    if len(out_size) != 2 or not all(known(side) is None or 0 < side <= MAX_COORDINATE for side in out_size):
        raise ValueError(
            f"{title}: out_size must be two numbers from 1 to {MAX_COORDINATE:.0e}, not {out_size}"
        )
    if out_dtype not in (None, *TYPES, *LABELS):
        raise ValueError(f"{title}: out_dtype must be one of {', '.join(TYPES)}, not {out_dtype!r}")
    border = border_value if isinstance(border_value, (list, tuple)) else [border_value]
    return call(
        operator,
        [data, matrix],
        out_size=out_size,
        border_value=[float(value) for value in border],
        out_dtype=out_dtype or "",
        **options,
        **more,
    )


def result_type(name: str, rows: int, types: Sequence[Type], attrs: Attrs) -> TensorType | None:
    """The type of the result of a warp by matrices of so many rows, or None while an argument has none."""
    refuse = partial(_register.refuse, name)
    if not all(isinstance(type_, TensorType) for type_ in types):
        return None
    data, matrix = types
    layout, out_dtype = str(attrs["layout"]), str(attrs["out_dtype"]) or data.dtype
    if len(data.shape) != 4:
        refuse(f"data must have the shape ({', '.join(layout)}), not {data.shape}")
    types = TYPES + (LABELS if attrs["interpolation"] == "nearest" else ())
    if data.dtype not in types:
        refuse(f"data must be of type {', '.join(types)} for {attrs['interpolation']}, not {data.dtype}")
    if out_dtype != data.dtype and (data.dtype in LABELS or "float" not in out_dtype):
        refuse(f"data of type {data.dtype} give no result of type {out_dtype}")
    extent = dict(zip(layout, data.shape))
    channels = known(extent["C"])
    if channels is None or channels < 1:
        refuse(f"the number of channels must be known, and not 0: {data.shape}")
    most = MAX_PIXELS[attrs["mode"]]
    if not all(known(extent[axis]) is None or 0 < extent[axis] <= most for axis in "HW"):
        refuse(f"{attrs['mode']} takes images of 1 to {most} pixels a side, not {data.shape}")
    if len(attrs["border_value"]) not in (1, channels):
        refuse(f"there must be one border value, or one for each of {channels} channels")
    shape = list(matrix.shape)
    if len(shape) not in (2, 3) or [known(length) or n for length, n in zip(shape[-2:], (rows, 3))] != [
        rows,
        3,
    ]:
        refuse(f"matrix must have the shape (N, {rows}, 3) or ({rows}, 3), not {matrix.shape}")
    if matrix.dtype not in ("float32", "float64"):
        refuse(f"matrix must be of type float32 or float64, not {matrix.dtype}")
    if len(shape) == 3 and None not in (known(extent["N"]), known(shape[0])) and extent["N"] != shape[0]:
        refuse(f"there must be as many matrices as images: {shape[0]} matrices, {extent['N']} images")
    extent["H"], extent["W"] = attrs["out_size"]
    return TensorType([extent[axis] for axis in layout], out_dtype)


@script
@no_type_check
def _shapes(data, matrix, height, width, row_axis, one_for_all, most):
    warped = output_tensor((4,), "int64")
    for axis in const_range(4):
        warped[axis] = data[axis]
    assert data[row_axis] <= int64(most), "topi_ext.warp_affine: an image is too large for this mode"
    assert data[row_axis + 1] <= int64(most), "topi_ext.warp_affine: an image is too large for this mode"
    if one_for_all == 0:
        assert matrix[0] == data[0], "topi_ext.warp_affine: there must be as many matrices as images"
    warped[row_axis] = int64(height)
    warped[row_axis + 1] = int64(width)
    return warped


def shape_function(attrs: Attrs, inputs: Sequence[te.Tensor], _: Sequence[tir.PrimExpr]) -> list[te.Tensor]:
    """The shape of the result."""
    row_axis = str(attrs["layout"]).index("H")
    one_for_all = int(int(inputs[1].shape[0]) == 2)
    most = MAX_PIXELS[attrs["mode"]]
    return [_shapes(*inputs, *map(convert, [*attrs["out_size"], row_axis, one_for_all, most]))]


def compute(kernels: ModuleType, attrs: Attrs, inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """The outputs, by the kernels for a target."""
    data = inputs[0]
    options: dict[str, Any] = {name: str(attrs[name]) for name in CHOICES}
    extent = dict(zip(options["layout"], data.shape))
    border = [float(value) for value in attrs["border_value"]]
    options["border_value"] = as_pixel(border, int(extent["C"]), dtype_of(data)).tolist()
    options["inverse_map"] = bool(attrs["inverse_map"])
    options["units"] = str(attrs["units"]) if "units" in list(attrs.keys()) else None
    extent["H"], extent["W"] = (known(side) or side for side in attrs["out_size"])
    shape = [extent[axis] for axis in options["layout"]]
    return [kernels.warp_affine(*inputs, shape, str(attrs["out_dtype"]) or dtype_of(data), options)]


_register.register(
    NAME,
    "Warp each image by an affine map.",
    ARGUMENTS,
    partial(result_type, NAME, 2),
    shape_function,
    _register.kernels_in(__package__),
    compute,
)
