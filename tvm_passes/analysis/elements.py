"""Arrays whose elements are any objects, such as lengths of which only the axis is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def array_of(elements: Iterable[Any], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of elements, by default along one axis."""
    elements = list(elements)
    result = np.empty(len(elements), object)
    for place, element in enumerate(elements):  # one by one: NumPy would take tuples and arrays apart
        result[place] = element
    return result if shape is None else result.reshape(shape)
