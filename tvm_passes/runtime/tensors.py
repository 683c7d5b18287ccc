"""Tensors of torch, NumPy and TVM as one another, by DLPack: without a copy wherever memory allows it."""

import ctypes
import math
import sys

import numpy as np

from topi_ext import _bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm._ffi.base import _LIB, check_call
from tvm.runtime import DataType

ALIGNMENT = 64  # TVM's kAllocAlignment: what compiled code expects of each tensor


class _Torch:
    name = "torch.Tensor"

    def holds(self, value):
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Tensor)

    def type_of(self, tensor):
        return tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")

    def device_of(self, tensor):
        kind, index = tensor.device.type, tensor.device.index or 0
        return tvm.device(kind, index) if kind in ("cpu", "cuda") else kind

    def converted(self, dtype):
        return f".to(torch.{dtype})"

    def shared(self, tensor, device):
        """As a TVM array of the same memory; where TVM cannot read that, of a copy that torch makes."""
        import torch

        tensor = tensor.detach().resolve_neg()  # some views, as of a conjugate, are yet to be negated
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        if not tensor.numel():
            return tvm.nd.empty(*self.type_of(tensor), device)
        if tensor.dtype == torch.bool:  # TVM takes DLPack's bool for a type of 8 bits that is none
            return _retyped(self.shared(tensor.view(torch.uint8), device), "bool")
        return tvm.nd.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))

    def result(self, array, fresh, _stream):
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

    def holds(self, value):
        return isinstance(value, tvm.nd.NDArray)

    def type_of(self, array):
        return array.shape, array.dtype

    def device_of(self, array):
        return array.device

    def converted(self, dtype):
        return f" as {dtype}"

    def shared(self, array, _device):
        tensor = array.handle.contents
        return None if tensor.byte_offset or (tensor.data or 0) % ALIGNMENT else array

    def copy(self, array, into, stream):
        copy(array.handle, into, stream)

    def result(self, array, fresh, stream):
        if not fresh:
            return array
        into = tvm.nd.empty(array.shape, array.dtype, array.device)
        copy(array.handle, into, stream)
        return into


class _Numpy:
    name = "numpy.ndarray"

    def holds(self, value):
        return isinstance(value, np.ndarray)

    def type_of(self, array):
        return array.shape, str(array.dtype)

    def device_of(self, _array):
        return tvm.cpu()

    def converted(self, dtype):
        return " as a torch.Tensor" if dtype == "bfloat16" else f'.astype("{dtype}")'

    def shared(self, array, device):
        flags = array.flags
        readable = flags.c_contiguous and flags.writeable and array.size and not array.ctypes.data % ALIGNMENT
        if device != tvm.cpu() or not readable or array.dtype == bool:
            return None
        return tvm.nd.from_dlpack(array.__dlpack__())

    def copy(self, array, into, stream):
        described, _shape = tvm.nd.numpyasarray(np.ascontiguousarray(array))
        copy(ctypes.byref(described), into, stream)

    def result(self, array, _fresh, _stream):
        if array.dtype == "bfloat16":  # whose bits TVM gives, as NumPy lacks it
            return (array.numpy().astype("uint32") << 16).view("float32")
        return array.numpy()


TORCH, TVM, NUMPY = KINDS = _Torch(), _Tvm(), _Numpy()  # in the order in which they decide on outputs


def kind_of(value):
    """Which of KINDS a value is, or None."""
    return next((kind for kind in KINDS if kind.holds(value)), None)


def copy(source, into, stream):
    """Copy a tensor, given by its handle, into an array, in the order of a stream."""
    check_call(_LIB.TVMArrayCopyFromTo(source, into.handle, ctypes.c_void_p(stream)))


def first(array, axis, number):
    """The first so many along an axis, in the same memory; in front of it are only axes of length 1."""
    return array._create_view((*array.shape[:axis], number, *array.shape[axis + 1 :]))


def _retyped(array, dtype):
    """The same memory as elements of another type of the same size."""
    view = array._create_view(array.shape)
    view.handle.contents.dtype = DataType(dtype)
    return view
