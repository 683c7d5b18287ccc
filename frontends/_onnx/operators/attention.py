"""Attention, as ONNX Runtime's optimizer writes it."""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np

from tvm import relay

from ..._fold import constant
from ._common import Attrs, Inputs, Params, all_sizes_of, dtype_of, rank_of, stock

BIAS = 2
# Operators, and where their mask and their past keys and values are among up to nine inputs.
PLACES = {"Attention": (3, 4), "QAttention": (5, 8)}


def attention(name: str, importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own needs a bias, a mask and `unidirectional`, and stops without a reason."""
    given = [inputs[place] for place in range(9)]
    mask_at, past_at = PLACES[name]
    mask, past = given[mask_at], given[past_at]
    if mask is None:
        batch, length, _ = all_sizes_of(given[0])
        before = 0 if past is None else all_sizes_of(past)[3]
        given[mask_at] = constant(np.ones((batch, before + length), "int32"))
    elif rank_of(mask) != 2:
        raise NotImplementedError("its mask must be a matrix, with a row for each sequence of the batch")
    if given[BIAS] is None:
        of = "float32" if name == "QAttention" else dtype_of(given[0])
        given[BIAS] = constant(np.zeros(all_sizes_of(given[1])[1], of))
    attrs["unidirectional"] = attrs.get("unidirectional", 0)
    return stock(importer, name)(importer.onnx_input.of(given), attrs, params)


CONVERTERS = {name: functools.partial(attention, name) for name in PLACES}
