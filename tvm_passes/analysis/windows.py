"""Maxima of windows, taken along one axis after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

WORTH = 0.6  # of the comparisons of one pool, which two may have: they write results and read them, too


def is_worth_two_pools(attrs: Any) -> bool:
    """Whether a max pool along the width and one along the height compare fewer numbers than one of both."""
    (height, width), (step, _) = map(int, attrs.pool_size), map(int, attrs.strides)
    is_height_first = str(attrs.layout).index("H") < str(attrs.layout).index("W")
    return is_height_first and width * step + height <= WORTH * width * height


def in_two_pools(max_pool2d: Callable[..., Any], data: Any, attrs: Any) -> Any:
    """The max pool of these attributes along the width, and one of its results along the height."""
    rows = max_pool2d(data, **_part(attrs, has=(False, True)))
    return max_pool2d(rows, **_part(attrs, has=(True, False)))


def _part(attrs: Any, has: tuple[bool, bool]) -> dict[str, Any]:
    """The arguments of a max pool along one of the axes."""

    def along(values: Iterable[Any], otherwise: int) -> list[int]:
        given = list(map(int, values))
        given = given * 2 if len(given) == 1 else given
        return [value if has[at % 2] else otherwise for at, value in enumerate(given)]

    return {
        "pool_size": along(attrs.pool_size, 1),
        "strides": along(attrs.strides, 1),
        "dilation": along(attrs.dilation, 1),
        "padding": along(attrs.padding, 0),
        "layout": str(attrs.layout),
        "out_layout": str(attrs.out_layout),
        "ceil_mode": bool(attrs.ceil_mode),
    }
