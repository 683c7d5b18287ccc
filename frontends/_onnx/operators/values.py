"""Cast, Constant and others that make or convert values."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tvm import relay

from ._common import Attrs, Converter, Inputs, Params, dtype_of, like, rank_of, stock


def cast(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own uses `onnx.mapping`, which recent onnx lacks, and takes NaN for False."""
    dtype = importer.get_type(attrs["to"])
    if dtype == "bool" and dtype_of(inputs[0]).startswith("float"):
        return relay.not_equal(inputs[0], like(0, inputs[0]))
    return inputs[0] if dtype_of(inputs[0]) == dtype else relay.cast(inputs[0], dtype)


def constant(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own supports the attribute `value` only."""
    for name, dtype in CONSTANT_ATTRIBUTES.items():
        if name in attrs:
            return relay.const(np.array(attrs[name], dtype), dtype)
    return stock(importer, "Constant")(inputs, attrs, params)


CONSTANT_ATTRIBUTES = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}


def identity(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own makes a copy."""
    return inputs[0]


def range_(importer: ModuleType, inputs: Inputs, attrs: Attrs, params: Params) -> relay.Expr:
    """TVM's own fails for vectors of one number, which ONNX Runtime takes, and ONNX's AffineGrid gives."""
    bounds = [importer.fold_constant(relay.reshape(each, []) if rank_of(each) else each) for each in inputs]
    if len(bounds) == 2:  # as ONNX Runtime's own operator has it
        bounds.append(like(1, bounds[0]))
    return stock(importer, "Range")(importer.onnx_input.of(bounds), attrs, params)


CONVERTERS: dict[str, Converter] = {
    "Cast": cast,
    "Constant": constant,
    "Identity": identity,
    "Range": range_,
}
