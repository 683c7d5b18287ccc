"""What a name of an ONNX graph is in the graph that is made of it, of Relay or of Relax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np


class Imported(NamedTuple):
    """A tensor: `value` is for the frontend alone, `array` gives the elements where they are constant."""

    value: Any
    dtype: str
    sizes: tuple[int | None, ...]  # None where only the run knows
    array: Callable[[], np.ndarray] | None = None


FindImported = Callable[[Optional[str]], Optional[Imported]]
