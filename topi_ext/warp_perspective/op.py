"""The Relay operator `topi_ext.warp_perspective`: its arguments, types, shapes, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .. import _register
from .._tvm import Expr
from .._types import Shape
from ..warp_affine.op import ARGUMENTS, call_of, compute, result_type, shape_function

NAME = "topi_ext.warp_perspective"
UNITS = ("pixels", "centers", "corners")


def warp_perspective(
    data: Expr,
    matrix: Expr,
    out_size: Shape,
    *,
    units: str = "pixels",
    interpolation: str = "bilinear",
    border_mode: str = "constant",
    border_value: float | Sequence[float] = 0,
    layout: str = "NCHW",
    out_dtype: str | None = None,
) -> Expr:
    """Warp each image by a projective map, from pixels of the result to places in the data.

    Parameters
    ----------
    data : Expr
        Images, as `warp_affine` takes them.
    matrix : Expr
        (N, 3, 3), or (3, 3) for all images, float32 or float64.
    out_size : (int, int)
        Height and width of the result.
    units : "pixels", "centers" or "corners"
        What the matrix gives: pixels of the data, or places from -1 to 1, which are the centers of the
        outermost pixels for "corners", and half a pixel farther out for "centers"; so torch's `grid_sample`
        calls these with and without `align_corners`.
    interpolation, border_mode, border_value, layout, out_dtype
        As in `warp_affine`.

    Returns
    -------
    warped : Expr
        (N, C, height, width) or (N, height, width, C).

    Convention
    ----------
    - `(x, y, z) = matrix @ (column, row, 1)`, and the place is `(x / z, y / z)`, with x to the right, y down,
      and for "pixels" (0, 0) the center of the first pixel.
    - Where z is not farther than 1e-8 from 0, it counts as 1, as in kornia.
    - All else is as in `warp_affine` in the mode "exact": coordinates are float64, a matrix with a
      coefficient that is NaN, infinite or beyond 2**500 gives the border value, and nothing is read out of
      bounds.

    >>> from topi_ext.warp_perspective import reference
    >>> data, tilt = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2), [[2, 0, 0], [0, 2, 0], [1, 0, 1]]
    >>> print(reference.warp_perspective(data, tilt, (2, 2))[0, 0])
    [[1. 2.]
     [0. 4.]]
    """
    if units not in UNITS:
        raise ValueError(f"warp_perspective: units must be one of {', '.join(UNITS)}, not {units!r}")
    options = {
        "mode": "exact",
        "interpolation": interpolation,
        "border_mode": border_mode,
        "layout": layout,
    }
    more = {"inverse_map": 1, "units": units}
    return call_of(NAME, data, matrix, out_size, options, border_value, out_dtype, **more)


_register.register(
    NAME,
    "Warp each image by a projective map.",
    {"data": ARGUMENTS["data"], "matrix": "(N, 3, 3), or (3, 3) for all images, float32 or float64."},
    partial(result_type, NAME, 3),
    shape_function,
    _register.kernels_in(__package__),
    compute,
)
