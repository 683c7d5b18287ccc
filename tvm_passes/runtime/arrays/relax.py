"""TVM 0.27."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm_ffi import get_raw_stream

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm
from tvm.runtime import Tensor as Array

from ..cuda_driver import driver
from ..memory import Place
from ..tensor_type import TensorType

if TYPE_CHECKING:
    import torch
if TYPE_CHECKING or tvm_in_use.compiles:
    from tvm import relax

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

NAME = "tvm.runtime.Tensor"


# --- arrays


def empty(shape: Sequence[int], dtype: str, device: tvm.runtime.Device) -> Array:
    return tvm.runtime.empty(shape, dtype, device)


def of_torch(tensor: torch.Tensor) -> Array:
    """The same memory, which is contiguous and aligned."""
    return tvm.runtime.from_dlpack(tensor)


def as_torch(array: Array) -> torch.Tensor:
    """The same memory."""
    import torch

    return torch.from_dlpack(array)


def of_numpy(array: np.ndarray) -> Array:
    """The same memory, which is contiguous and aligned."""
    return tvm.runtime.from_dlpack(array)


def as_numpy(array: Array) -> np.ndarray:
    """A copy, of float32 for bfloat16."""
    return array.numpy().astype("float32") if array.dtype == "bfloat16" else array.numpy()


def is_aligned(array: Array, alignment: int) -> bool:
    return not array.data_ptr() % alignment


def address_of(array: Array) -> int:
    """Of its memory."""
    return int(array.data_ptr())


def bytes_of(array: Array) -> int:
    """Of all elements."""
    return int(math.prod(array.shape) * array.dtype.itemsize)


def place_of(array: Array) -> Place:
    """Its memory."""
    return address_of(array), bytes_of(array)


def is_contiguous(array: Array) -> bool:
    return array.is_contiguous()


def copy(source: Array | np.ndarray, into: Array, stream: int) -> None:
    """Copy between contiguous arrays of the same type, ordered on a stream; TVM's own are not."""
    if isinstance(source, np.ndarray):
        start, devices = source.ctypes.data, [into.device]
    else:
        start, devices = source.data_ptr(), [into.device, source.device]
    size = bytes_of(into)
    if any(map(is_cuda, devices)):
        driver()("cuMemcpyAsync", into.data_ptr(), start, size, stream)
    else:
        ctypes.memmove(into.data_ptr(), start, size)


def type_of(type_: object) -> TensorType | None:
    """What TVM's type of a tensor says, or a `TensorType` itself; None for any other type."""
    if isinstance(type_, TensorType):
        return type_
    if not tvm_in_use.compiles or not isinstance(type_, relax.TensorType):
        return None
    if type_.ndim < 0 or type_.dtype is None:
        return None
    is_given = isinstance(type_.shape, relax.ShapeExpr)
    lengths = map(_constant, type_.shape) if is_given else [None] * type_.ndim
    return TensorType((*lengths,), str(type_.dtype))


def _constant(length: tvm.ir.PrimExpr) -> int | None:
    return int(length) if isinstance(length, tvm.tirx.IntImm) else None


# --- devices and streams


def is_cuda(device: tvm.runtime.Device) -> bool:
    return device.dlpack_device_type() == tvm.cuda().dlpack_device_type()


def ordinal_of(device: tvm.runtime.Device) -> int:
    return device.index


def current_stream(device: tvm.runtime.Device) -> int:
    """The stream that TVM uses in the current thread."""
    return get_raw_stream(device)


def use_stream(device: tvm.runtime.Device, stream: int | None) -> None:
    device.set_raw_stream(stream or 0)


def synchronize(device: tvm.runtime.Device, stream: int) -> None:
    """Wait for a stream."""
    device.sync(stream)
