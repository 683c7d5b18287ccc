"""TVM 0.17."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm._ffi.base import _LIB, check_call
from tvm.runtime import DataType
from tvm.runtime.ndarray import NDArray as Array

from ..memory import Place
from ..tensor_type import TensorType

if TYPE_CHECKING:
    import torch

__all__ = [
    "NAME",
    "Array",
    "address_of",
    "as_numpy",
    "as_torch",
    "bytes_of",
    "copy",
    "current_stream",
    "empty",
    "is_aligned",
    "is_contiguous",
    "is_cuda",
    "of_numpy",
    "of_torch",
    "ordinal_of",
    "place_of",
    "synchronize",
    "type_of",
    "use_stream",
]

NAME = "tvm.nd.NDArray"


# --- arrays


def empty(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> Array:
    return tvm.nd.empty(shape, dtype, device)


def of_torch(tensor: torch.Tensor) -> Array:
    """The same memory, which is contiguous and aligned."""
    import torch

    if tensor.dtype == torch.bool:  # TVM reads DLPack's bool as a type of 8 bits that does not exist
        return _retyped(of_torch(tensor.view(torch.uint8)), "bool")
    return tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))


def as_torch(array: Array) -> torch.Tensor:
    """The same memory."""
    import torch

    is_bool = array.dtype == "bool"
    tensor = torch.utils.dlpack.from_dlpack((_retyped(array, "uint8") if is_bool else array).to_dlpack())
    return tensor.view(torch.bool) if is_bool else tensor


def of_numpy(array: np.ndarray) -> Array:
    """The same memory, which is contiguous and aligned."""
    return tvm.nd.from_dlpack(array.__dlpack__())


def as_numpy(array: Array) -> np.ndarray:
    """A copy, of float32 for bfloat16."""
    if array.dtype == "bfloat16":  # whose bits TVM gives, as NumPy lacks it
        return (array.numpy().astype("uint32") << 16).view("float32")
    return array.numpy()


def is_aligned(array: Array, alignment: int) -> bool:
    return not array.handle.contents.byte_offset and not address_of(array) % alignment


def address_of(array: Array) -> int:
    """Of its memory."""
    return array.handle.contents.data or 0


def bytes_of(array: Array) -> int:
    """Of all elements."""
    return math.prod(array.shape) * -(-DataType(array.dtype).bits // 8)


def place_of(array: Array) -> Place:
    """Its memory."""
    return address_of(array), bytes_of(array)


def is_contiguous(_array: Array) -> bool:
    return True  # TVM makes no others


def copy(source: Array | np.ndarray, into: Array, stream: int) -> None:
    """Copy between contiguous arrays of the same type, ordered on a stream."""
    if isinstance(source, np.ndarray):
        described, _shape = tvm.nd.numpyasarray(source)  # which keeps neither of them
        handle = ctypes.byref(described)
    else:
        handle = source.handle
    check_call(_LIB.TVMArrayCopyFromTo(handle, into.handle, ctypes.c_void_p(stream)))


def _retyped(array: Array, dtype: str) -> Array:
    """The same memory, with elements of another type of the same size."""
    view = array._create_view(array.shape)
    view.handle.contents.dtype = DataType(dtype)
    return view


def type_of(type_: object) -> TensorType | None:
    """What TVM's type of a tensor says, or a `TensorType` itself; None for any other type."""
    if not isinstance(type_, tvm.ir.TensorType):
        return type_ if isinstance(type_, TensorType) else None
    return TensorType((*map(_constant, type_.shape),), type_.dtype)


def _constant(length: tvm.tir.PrimExpr) -> int | None:
    return int(length) if isinstance(length, tvm.tir.IntImm) else None


# --- devices and streams


def is_cuda(device: tvm.runtime.Device) -> bool:
    return device.device_type == device.kDLCUDA


def ordinal_of(device: tvm.runtime.Device) -> int:
    return device.device_id


def current_stream(_device: tvm.runtime.Device) -> int:
    """The stream that TVM uses in the current thread."""
    return tvm.get_global_func("runtime.get_cuda_stream")().value or 0


def use_stream(device: tvm.runtime.Device, stream: int | None) -> None:
    device.set_raw_stream(ctypes.c_void_p(stream))  # a plain int would lose half its bits


def synchronize(device: tvm.runtime.Device, stream: int) -> None:
    """Wait for a stream."""
    device.sync(ctypes.c_void_p(stream))
