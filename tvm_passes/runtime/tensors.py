"""Convert tensors between torch, NumPy and TVM by DLPack, without a copy wherever possible."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm._ffi.base import _LIB, check_call
from tvm.runtime import DataType

if TYPE_CHECKING:
    import torch


Tensor = Any  # of torch, NumPy or TVM
Kind = Any  # one of KINDS

ALIGNMENT = 64  # TVM's kAllocAlignment: what compiled code expects of each tensor


class _Torch:
    name = "torch.Tensor"

    def holds(self, value: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Tensor)

    def refusal(self, name: str, tensor: torch.Tensor) -> str | None:
        import torch

        if tensor.is_nested:
            return f"is nested: give torch.nested.to_padded_tensor({name}, 0)"
        if tensor.layout is not torch.strided:
            return f"is {str(tensor.layout).replace('torch.', '')}: give {name}.to_dense()"
        if tensor.is_quantized:
            return f"is quantized: give {name}.dequantize(), or {name}.int_repr()"
        if tensor.is_complex():
            return f"is {tensor.dtype}, which TVM lacks: give {name}.real or {name}.imag"
        try:
            tensor.data_ptr()
        except RuntimeError:
            return "has no memory of its own, as inside torch.func's transforms: give a plain tensor"
        return None

    def type_of(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
        return tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")

    def device_of(self, tensor: torch.Tensor) -> tvm.runtime.Device | str:
        kind, index = tensor.device.type, tensor.device.index or 0
        return tvm.device(kind, index) if kind in ("cpu", "cuda") else kind

    def converted(self, dtype: str) -> str:
        return f".to(torch.{dtype})"

    def shared(self, tensor: torch.Tensor, device: tvm.runtime.Device) -> tvm.nd.NDArray:
        """A TVM array of the same memory, or of a copy by torch where TVM cannot read that memory."""
        import torch

        tensor = tensor.detach().resolve_neg()  # some views, as of a conjugate, have a pending negation
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        if not tensor.numel():
            return tvm.nd.empty(*self.type_of(tensor), device)
        if tensor.dtype == torch.bool:  # TVM reads DLPack's bool as a type of 8 bits that does not exist
            return _retyped(self.shared(tensor.view(torch.uint8), device), "bool")
        return tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))

    def result(self, array: tvm.nd.NDArray, fresh: bool, _stream: int) -> torch.Tensor:
        import torch

        if not math.prod(array.shape):
            device = "cpu" if array.device == tvm.cpu() else f"cuda:{array.device.device_id}"
            return torch.empty(array.shape, dtype=getattr(torch, array.dtype), device=device)
        is_bool = array.dtype == "bool"
        tensor = torch.utils.dlpack.from_dlpack((_retyped(array, "uint8") if is_bool else array).to_dlpack())
        tensor = tensor.view(torch.bool) if is_bool else tensor
        return tensor.clone() if fresh else tensor


class _Tvm:
    name = "tvm.nd.NDArray"

    def holds(self, value: object) -> bool:
        return isinstance(value, tvm.nd.NDArray)

    def refusal(self, _name: str, _array: tvm.nd.NDArray) -> str | None:
        return None

    def type_of(self, array: tvm.nd.NDArray) -> tuple[tuple[int, ...], str]:
        return array.shape, array.dtype

    def device_of(self, array: tvm.nd.NDArray) -> tvm.runtime.Device:
        return array.device

    def converted(self, dtype: str) -> str:
        return f" as {dtype}"

    def shared(self, array: tvm.nd.NDArray, _device: tvm.runtime.Device) -> tvm.nd.NDArray | None:
        tensor = array.handle.contents
        return None if tensor.byte_offset or (tensor.data or 0) % ALIGNMENT else array

    def copy(self, array: tvm.nd.NDArray, into: tvm.nd.NDArray, stream: int) -> None:
        copy(array.handle, into, stream)

    def result(self, array: tvm.nd.NDArray, fresh: bool, stream: int) -> tvm.nd.NDArray:
        if not fresh:
            return array
        into = tvm.nd.empty(array.shape, array.dtype, array.device)
        copy(array.handle, into, stream)
        return into


class _Numpy:
    name = "numpy.ndarray"

    def holds(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def refusal(self, name: str, array: np.ndarray) -> str | None:
        if np.ma.is_masked(array):
            return f"has masked elements: give {name}.filled() with a value for them"
        dtype = array.dtype
        if not dtype.isnative:
            return f'has another byte order than this machine: give {name}.astype("{dtype.newbyteorder()}")'
        if dtype.name != "bfloat16" and (dtype.kind not in "biuf" or dtype.itemsize > 8):
            return f"has elements of type {dtype}, which TVM lacks: give numbers or booleans of up to 64 bits"
        return None

    def type_of(self, array: np.ndarray) -> tuple[tuple[int, ...], str]:
        return array.shape, str(array.dtype)

    def device_of(self, _array: np.ndarray) -> tvm.runtime.Device:
        return tvm.cpu()

    def converted(self, dtype: str) -> str:
        return " as a torch.Tensor" if dtype == "bfloat16" else f'.astype("{dtype}")'

    def shared(self, array: np.ndarray, device: tvm.runtime.Device) -> tvm.nd.NDArray | None:
        flags = array.flags
        readable = flags.c_contiguous and flags.writeable and array.size and not array.ctypes.data % ALIGNMENT
        if device != tvm.cpu() or not readable or array.dtype.kind not in "iuf":  # NumPy's types of DLPack
            return None
        return tvm.nd.from_dlpack(array.__dlpack__())

    def copy(self, array: np.ndarray, into: tvm.nd.NDArray, stream: int) -> None:
        contiguous = np.asarray(array, order="C")
        described, _shape = tvm.nd.numpyasarray(contiguous)  # which keeps neither of them
        copy(ctypes.byref(described), into, stream)
        into.device.sync(ctypes.c_void_p(stream))  # CUDA may return before it has read pinned memory

    def result(self, array: tvm.nd.NDArray, _fresh: bool, _stream: int) -> np.ndarray:
        if array.dtype == "bfloat16":  # whose bits TVM gives, as NumPy lacks it
            return (array.numpy().astype("uint32") << 16).view("float32")
        return array.numpy()


TORCH, TVM, NUMPY = KINDS = _Torch(), _Tvm(), _Numpy()  # in the order in which they decide on outputs


def kind_of(value: object) -> Kind | None:
    """The kind of a value, one of KINDS, or None."""
    return next((kind for kind in KINDS if kind.holds(value)), None)


def copy(source: Any, into: tvm.nd.NDArray, stream: int) -> None:
    """Copy a tensor, given by its handle, into an array, ordered on a stream."""
    check_call(_LIB.TVMArrayCopyFromTo(source, into.handle, ctypes.c_void_p(stream)))


def first(array: tvm.nd.NDArray, axis: int, number: int | np.integer) -> tvm.nd.NDArray:
    """The leading elements along an axis, in the same memory; all axes before it must have length 1."""
    return array._create_view((*array.shape[:axis], number, *array.shape[axis + 1 :]))


def _retyped(array: tvm.nd.NDArray, dtype: str) -> tvm.nd.NDArray:
    """The same memory, with elements of another type of the same size."""
    view = array._create_view(array.shape)
    view.handle.contents.dtype = DataType(dtype)
    return view
