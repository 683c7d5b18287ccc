"""This project's converters, where TVM's importer has none, or one that is wrong or wasteful.

The first sentence of each says what TVM's own converter lacks or gets wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from . import (
    activations,
    arithmetic,
    attention,
    control_flow,
    convolution,
    detection,
    fused,
    gathering,
    matrices,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resizing,
    sequences,
    shapes,
    signal,
    values,
)
from ._common import Converter

FAMILIES = (
    activations,
    arithmetic,
    attention,
    control_flow,
    convolution,
    detection,
    fused,
    gathering,
    matrices,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resizing,
    sequences,
    shapes,
    signal,
    values,
)
CONVERTERS: dict[str, Converter] = {
    name: convert for family in FAMILIES for name, convert in family.CONVERTERS.items()
}
OF_PLUGINS = {**convolution.OF_PLUGINS, **detection.OF_PLUGINS}


def bound_to(importer: ModuleType) -> dict[str, Callable]:
    """The converters by operator name, for the importer's table."""
    return {name: functools.partial(convert, importer) for name, convert in CONVERTERS.items()}
