"""Compares the results of a converter with the shapes and dtypes that the trace has recorded.

Dynamic extents are not compared. If TVM's dtype is a wider one of the same kind, the result is cast to
torch's. TVM counts and indexes in int32 where torch does in int64, which is left so.
"""

from __future__ import annotations

from typing import Any

import torch

import tvm
from tvm import relay
from tvm.relay.frontend.common import set_span

from ..errors import ImportFailure
from .arguments import type_text

DTYPES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "Float": "float32", "Double": "float64",
}  # fmt: skip
# Of TorchScript's names, with torch's own.
NOT_IMPORTED = {
    "BFloat16": torch.bfloat16, "ComplexHalf": torch.complex32, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}  # fmt: skip


def instead_of(dtype: torch.dtype) -> str:
    """Why tensors of a dtype are not imported, and what to do."""
    if dtype == torch.bfloat16:
        return (
            "which the importer does not take: import the model in float32 (model.float(), without autocast) "
            'and let passes compute in bfloat16, as detection_pipeline(target, dtype="bfloat16") does'
        )
    if dtype.is_complex:
        return "and TVM has no complex numbers: compute with real and imaginary parts"
    return "which TVM does not have: convert to another dtype"


def settle_results(converter: Any, node: torch.Node, outputs: dict[str, Any]) -> None:
    """Refuse results that do not have the type that torch gave them; cast those that only have more bits."""
    for value in node.outputs():
        if value.type().kind() != "TensorType":
            continue
        name = value.debugName()
        found = outputs.get(name)
        if found is None and value.uses() and node.kind() != "prim::Constant":
            raise ImportFailure(f"only some of its {node.outputsSize()} results can be converted")
        if isinstance(found, relay.Expr):
            settled = _settled(converter, value.type(), found)
            if settled is not found:
                outputs[name] = set_span(settled, converter.source_map[node])


def _settled(converter: Any, wanted: Any, found: relay.Expr) -> relay.Expr:
    found_type = converter.infer_type_with_prelude(found)
    dtype, shape = DTYPES.get(wanted.scalarType()), wanted.sizes()
    if not isinstance(found_type, relay.TensorType) or dtype is None or shape is None:
        return found
    sizes = [int(size) if isinstance(size, tvm.tir.IntImm) else size for size in found_type.shape]
    if not _is_same_shape(shape, sizes) or not _can_stand_for(found_type.dtype, dtype):
        is_one = [int(size) for size in shape] == [1] * len(shape) and sizes == [1] * len(sizes)
        if not is_one or not _can_stand_for(found_type.dtype, dtype):
            theirs, ours = type_text(shape, dtype), type_text(sizes, found_type.dtype)
            raise ImportFailure(f"it would be converted to {ours}, but is {theirs} in PyTorch")
        found = relay.reshape(found, shape)
    if found_type.dtype == dtype or (found_type.dtype, dtype) == ("int32", "int64"):
        return found
    return relay.cast(found, dtype)


def _is_same_shape(wanted: list[int], found: list[Any]) -> bool:
    return len(wanted) == len(found) and all(
        size == other for size, other in zip(wanted, found) if isinstance(other, int)
    )


def _can_stand_for(found: str, wanted: str) -> bool:
    """Whether a dtype is the one wanted or a wider one of its kind, or int32 for an int64."""
    if found == wanted or (found, wanted) == ("int32", "int64"):
        return True
    return _kind(found) == _kind(wanted) and _width(found) > _width(wanted)


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "float" if "float" in dtype else "int"


def _width(dtype: str) -> int:
    return int("".join(filter(str.isdigit, dtype)) or 0)
