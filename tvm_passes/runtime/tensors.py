"""Convert tensors between torch, NumPy and TVM by DLPack, without a copy wherever possible."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm

from . import arrays
from .arrays import Array, copy

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
        return why_unreadable(tensor)

    def type_of(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
        return tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")

    def device_of(self, tensor: torch.Tensor) -> tvm.runtime.Device | str:
        kind, index = tensor.device.type, tensor.device.index or 0
        return tvm.device(kind, index) if kind in ("cpu", "cuda") else kind

    def converted(self, dtype: str) -> str:
        return f".to(torch.{dtype})"

    def shared(self, tensor: torch.Tensor, device: tvm.runtime.Device) -> Array:
        """A TVM array of the same memory, or of a copy by torch where TVM cannot read that memory."""
        import torch

        tensor = tensor.detach().resolve_neg()  # some views, as of a conjugate, have a pending negation
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        if not tensor.numel():
            return arrays.empty(*self.type_of(tensor), device)
        return arrays.of_torch(tensor)

    def result(self, array: Array, fresh: bool, _stream: int) -> torch.Tensor:
        import torch

        if not math.prod(array.shape):
            device = torch_name(array.device)
            return torch.empty(array.shape, dtype=getattr(torch, array.dtype), device=device)
        tensor = arrays.as_torch(array)
        return tensor.clone() if fresh else tensor


class _Tvm:
    name = arrays.NAME

    def holds(self, value: object) -> bool:
        return isinstance(value, Array)

    def refusal(self, name: str, array: Array) -> str | None:
        return None if arrays.is_contiguous(array) else f"is not contiguous: give torch.from_dlpack({name})"

    def type_of(self, array: Array) -> tuple[tuple[int, ...], str]:
        return array.shape, array.dtype

    def device_of(self, array: Array) -> tvm.runtime.Device:
        return array.device

    def converted(self, dtype: str) -> str:
        return f" as {dtype}"

    def shared(self, array: Array, _device: tvm.runtime.Device) -> Array | None:
        return array if arrays.is_aligned(array, ALIGNMENT) else None

    def copy(self, array: Array, into: Array, stream: int) -> None:
        copy(array, into, stream)

    def result(self, array: Array, fresh: bool, stream: int) -> Array:
        if not fresh:
            return array
        into = arrays.empty(array.shape, array.dtype, array.device)
        copy(array, into, stream)
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

    def shared(self, array: np.ndarray, device: tvm.runtime.Device) -> Array | None:
        flags = array.flags
        readable = flags.c_contiguous and flags.writeable and array.size and not array.ctypes.data % ALIGNMENT
        if device != tvm.cpu() or not readable or array.dtype.kind not in "iuf":  # NumPy's types of DLPack
            return None
        return arrays.of_numpy(array)

    def copy(self, array: np.ndarray, into: Array, stream: int) -> None:
        contiguous = np.asarray(array, order="C")  # which has to be there until the copy is made
        copy(contiguous, into, stream)
        arrays.synchronize(into.device, stream)  # CUDA may return before it has read pinned memory

    def result(self, array: Array, _fresh: bool, _stream: int) -> np.ndarray:
        return arrays.as_numpy(array)


TORCH, TVM, NUMPY = KINDS = _Torch(), _Tvm(), _Numpy()  # in the order in which they decide on outputs


def why_unreadable(tensor: torch.Tensor) -> str | None:
    """Why TVM cannot take the elements of a tensor from its memory; of one on meta its device tells more."""
    import torch

    if torch.jit.is_tracing():  # which cannot look inside
        return "is being traced, and a trace would keep this one result for all inputs: trace the network"
    try:
        if tensor.data_ptr() or not tensor.numel() or tensor.is_meta:
            return None
    except RuntimeError:  # inside torch.func's transforms; a fake tensor, as of torch.export, is at 0
        pass
    return "has no memory of its own, as inside torch.func's transforms and torch.export: give a plain tensor"


def kind_of(value: object) -> Kind | None:
    """The kind of a value, one of KINDS, or None."""
    return next((kind for kind in KINDS if kind.holds(value)), None)


def torch_name(device: tvm.runtime.Device) -> str:
    return f"cuda:{arrays.ordinal_of(device)}" if arrays.is_cuda(device) else "cpu"


def first(array: Array, axis: int, number: int | np.integer) -> Array:
    """The leading elements along an axis, in the same memory; all axes before it must have length 1."""
    return array._create_view((*array.shape[:axis], number, *array.shape[axis + 1 :]))
