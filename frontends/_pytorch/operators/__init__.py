"""Converters of PyTorch's operators, where TVM's own are incomplete, wrong or missing.

There is one module per family of operators, which ends with its table. A converter's docstring begins with
the reason why it is here, so the tables together say what is TVM's own and what is not. An operator in no
table, nor in TVM's, is converted as torch itself decomposes it (`decomposed`), or refused.
"""

from __future__ import annotations

from . import (
    activations,
    arithmetic,
    attention,
    branches,
    convolution,
    counting,
    cumulative,
    decomposed,
    detection,
    fake_quantize,
    indexing,
    lists,
    losses,
    normalization,
    ordering,
    padding,
    pooling,
    products,
    quantized_decomposed,
    reductions,
    repeats,
    replaced,
    resize,
    sampling,
    scripted,
    shapes,
    vision,
)
from .converter import Convert, Converter

FAMILIES = (
    activations,
    arithmetic,
    attention,
    branches,
    convolution,
    counting,
    cumulative,
    decomposed,
    detection,
    indexing,
    lists,
    losses,
    normalization,
    ordering,
    padding,
    pooling,
    products,
    fake_quantize,
    quantized_decomposed,
    reductions,
    repeats,
    replaced,
    resize,
    sampling,
    scripted,
    shapes,
    vision,
)
CONVERTERS: dict[str, Convert] = {
    name: convert for family in FAMILIES for name, convert in family.CONVERTERS.items()
}

__all__ = ["CONVERTERS", "Converter"]
