"""Resizing along axes whose sizes only the run knows: what is around each coordinate is computed as it runs.

Coordinates are computed as in `resizing.py`. A quotient is one of float64 that is rounded, since TVM writes
division by a number as a product, which is another number in float32, and may be that of another pixel.
"""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import Expr

from ..._onnx.resizing import How

TIE = 1e-6  # so near to the middle of two pixels, ONNX Runtime takes the one that is preferred


def along(data: te.Tensor, axis: int, after: Expr, scale: float | None, how: How) -> te.Tensor:
    """With `after` elements along the axis; `scale` is outputs per input, if it is not their ratio."""
    before = data.shape[axis]

    def element(*at: Expr) -> Expr:
        def pixel(place: Expr) -> Expr:
            inside = tirx.max(tirx.min(place, before - 1), tirx.IntImm("int64", 0))
            return data(*at[:axis], inside, *at[axis + 1 :])

        where = _coordinate(at[axis], before, after, scale, how.coordinates)
        if how.mode == "nearest":
            return pixel(tirx.Cast("int64", _rounded(where, how.nearest_mode)))
        first = tirx.floor(where)
        weights = (_of_line if how.mode == "linear" else _of_cubic)(where - first, how.coefficient)
        places = [tirx.Cast("int64", first) + (at + 1 - len(weights) // 2) for at in range(len(weights))]
        taps = [pixel(place) * weight for place, weight in zip(places, weights)]
        return sum(taps[1:], taps[0])

    return te.compute([*data.shape[:axis], after, *data.shape[axis + 1 :]], element, "resampled")


def _coordinate(at: Expr, before: Expr, after: Expr, scale: float | None, kind: str) -> Expr:
    at, size, count = (tirx.Cast("float32", each) for each in (at, before, after))
    half, one = _number(0.5), _number(1.0)
    by = _quotient(count, size) if scale is None else _number(scale)
    if kind == "asymmetric":
        return _quotient(at, tirx.max(by, _number(1e-9)))  # the maximum is it; TVM does not compile it alone
    if kind == "align_corners":
        return _quotient(at * (size - one), tirx.max(count - one, one))
    centers = _quotient(at + half, by) - half
    if kind == "pytorch_half_pixel":
        return tirx.Select(after > 1, centers, _number(0.0))
    if kind == "half_pixel_symmetric":
        return size * half * (one - _quotient(count, by * size)) + centers
    return centers


def _rounded(where: Expr, how: str) -> Expr:
    if how in ("floor", "ceil"):
        return {"floor": tirx.floor, "ceil": tirx.ceil}[how](where)
    half = 0.5 - TIE if how == "round_prefer_floor" else 0.5 + TIE
    return tirx.floor(tirx.Cast("float64", where) + tirx.const(half, "float64"))


def _of_line(fraction: Expr, _: float) -> list[Expr]:
    return [_number(1.0) - fraction, fraction]


def _of_cubic(fraction: Expr, a: float) -> list[Expr]:
    def near(x: Expr) -> Expr:
        return (x * _number(a + 2) - _number(a + 3)) * x * x + _number(1.0)

    def far(x: Expr) -> Expr:
        return (((x - _number(5.0)) * x + _number(8.0)) * x - _number(4.0)) * _number(a)

    one, left = _number(1.0), _number(1.0) - fraction
    return [far(fraction + one), near(fraction), near(left), far(left + one)]


def _quotient(one: Expr, other: Expr) -> Expr:
    return tirx.Cast("float32", tirx.Cast("float64", one) / tirx.Cast("float64", other))


def _number(value: float) -> Expr:
    return tirx.const(float(value), "float32")
