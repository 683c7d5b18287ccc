"""Run a Relay operator on torch tensors: how a call becomes a kernel in torch's memory and stream.

A call with tensors, axes and options that were seen before finds its `_Path`, which has settled everything
but addresses: the checks, the kernel, the types of results and workspaces. The first such call makes it, and
compiles the kernel if no path has needed it yet. A path is for exact shapes, a kernel for a class of them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Union, cast

import torch

import tvm
from tvm import relay

from .._cpu_target import cpu_target
from ._kernels import ALIGNMENT, Arguments, Kernel, Types

MAX_PATHS = 4096  # that are kept; one has a few kilobytes

_paths: dict[tuple[Any, ...], _Path] = {}
_kernels: dict[tuple[Any, ...], Kernel] = {}
_compiling = threading.Lock()
_stream_of_tvm = tvm.get_global_func("runtime.get_cuda_stream", allow_missing=True)


Value = Union[torch.Tensor, float]


class Call(NamedTuple):
    """The Relay call that `build(*variables, *out_size, **options)` returns, on these tensors.

    `name`, and the names in `tensors`, are for errors. `tensors` has each tensor with its axes, such as
    "N c H W": a number is a fixed length; a letter is any length, the same wherever the letter occurs. A
    float stands for a float32 scalar. One kernel serves all lengths of capital letters and all of `out_size`.
    For each length of a small letter, and for other types and options, another one is compiled.
    """

    name: str
    build: Callable[..., relay.Expr]
    tensors: Mapping[str, tuple[Value, str]]
    out_size: Sequence[int]
    options: Mapping[str, Any]


def run(call: Call) -> Any:
    """The results of a call, as one tensor or a tuple."""
    tensors = [_plain(tensor, call) for tensor, _ in call.tensors.values()]
    types = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
    axes = [axes for _, axes in call.tensors.values()]
    key = (call.build, *axes, *types, *call.out_size, repr(call.options))
    path = _paths.get(key)
    if path is None:
        path = _remember(key, _new_path(call))
    return path(tensors)


def results_without_data(call: Call) -> Any:
    """Tensors like the results of a call on tensors without data, such as those of `torch.compile`.

    Lengths may be symbols of torch. Every target has the same results, so the CPU's kernel tells their types.
    """
    call = call._replace(options={name: _without_symbols(option) for name, option in call.options.items()})
    lengths, device = _checked(call)
    kernel = _kernel(call, lengths, torch.device("cpu"))
    types = kernel.types(lengths)[: kernel.results]
    return _one_or_all([_empty(shape, getattr(torch, dtype), device) for shape, dtype in types])


def _without_symbols(option: Any) -> Any:
    """An option as numbers: a kernel is for these alone."""
    if isinstance(option, torch.SymInt):
        return int(option)
    if isinstance(option, torch.SymFloat):
        return float(cast(Any, option))
    return [_without_symbols(each) for each in option] if isinstance(option, (list, tuple)) else option


class _Path:
    """The calls with one signature: whatever does not depend on addresses is settled."""

    def __init__(
        self, kernel: Kernel, inputs: Types, lengths: Mapping[str, int], device: torch.device
    ) -> None:
        outputs = kernel.types(lengths)
        results, workspaces = outputs[: kernel.results], outputs[kernel.results :]
        self._results = [(torch.Size(shape), getattr(torch, dtype)) for shape, dtype in results]
        self._is_empty = not any(shape.numel() for shape, _ in self._results)
        self._workspaces, self._bytes = _places(workspaces)
        self._device = device
        self._on_tvm = tvm.device(device.type, device.index or 0)
        self._arguments = Arguments(kernel.function, [*inputs, *outputs], self._on_tvm)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        results = [_empty(shape, dtype, self._device) for shape, dtype in self._results]
        if not self._is_empty:
            workspace = _empty((self._bytes,), torch.uint8, self._device)
            begin = workspace.data_ptr()
            addresses = [tensor.data_ptr() for tensor in (*tensors, *results)]
            addresses += [begin + place for place in self._workspaces]
            if self._device.type == "cpu":
                self._arguments.call(addresses)
            else:
                self._call_on_current_stream(addresses)
        return _one_or_all(results)

    def _call_on_current_stream(self, addresses: list[int]) -> None:
        """With torch's device and stream of this thread; TVM has a stream for each thread, too."""
        index = self._device.index
        if torch.cuda.current_device() != index:
            with torch.cuda.device(index):  # TVM sets the device, and does not restore it
                return self._call_on_current_stream(addresses)
        stream, before = torch._C._cuda_getCurrentRawStream(index), _stream_of_tvm()
        if stream == (before.value or 0):
            return self._arguments.call(addresses)
        self._on_tvm.set_raw_stream(ctypes.c_void_p(stream))  # a plain number would lose half its bits
        try:
            self._arguments.call(addresses)
        finally:
            self._on_tvm.set_raw_stream(before)


def _places(workspaces: Types) -> tuple[list[int], int]:
    """Where each workspace begins in their common memory, and the number of bytes of all."""
    places, end = [], 0
    for shape, dtype in workspaces:
        places.append(end)
        bits = tvm.DataType(dtype).bits
        end += -(-torch.Size(shape).numel() * bits // 8 // ALIGNMENT) * ALIGNMENT
    return places, end


def _new_path(call: Call) -> _Path:
    lengths, device = _checked(call)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{call.name}: there are kernels for tensors on cpu and cuda, not on {device.type}")
    inputs = [(tuple(getattr(tensor, "shape", ())), _dtype(tensor)) for tensor, _ in call.tensors.values()]
    kernel = _kernel(call, lengths, device)
    if not kernel.is_compiled:
        with _compiling:
            kernel.compile()
    return _Path(kernel, inputs, lengths, device)


def _remember(key: tuple[Any, ...], path: _Path) -> _Path:
    if len(_paths) >= MAX_PATHS:
        _paths.clear()
    _paths[key] = path
    return path


def _checked(call: Call) -> tuple[dict[str, int], torch.device]:
    """The length of each axis by its name, and the device; raises an error for a bad tensor."""
    name = call.name
    lengths: dict[str, int] = {}
    devices: list[torch.device] = []
    first = next(iter(call.tensors))
    for tensor_name, (tensor, all_axes) in call.tensors.items():
        if isinstance(tensor, float) and not all_axes:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {tensor_name} must be a tensor, not a {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise TypeError(f"{name}: {tensor_name} must be a dense tensor: a sparse one has to_dense()")
        axes, shape = all_axes.split(), tuple(tensor.shape)
        before = {axis: lengths[axis] for axis in axes if axis in lengths}
        lengths.update((axis, int(axis)) for axis in axes if axis.isdigit())
        pairs = zip(axes, shape)
        if len(axes) != len(shape) or any(lengths.setdefault(axis, n) != n for axis, n in pairs):
            where = "".join(f"; {axis.upper()} is {n}" for axis, n in before.items() if not axis.isdigit())
            wanted = ", ".join(axes).upper()
            raise ValueError(f"{name}: {tensor_name} must have the shape ({wanted}), not {shape}{where}")
        devices.append(tensor.device)
        if tensor.device != devices[0]:
            raise ValueError(f"{name}: {first} is on {devices[0]}, but {tensor_name} on {tensor.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {tensor_name} must be contiguous: call its method contiguous()")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} has no gradient: give {tensor_name}.detach(), or call it under torch.no_grad()"
            )
    if any(size < 1 for size in call.out_size):
        raise ValueError(f"{name}: out_size must be above 0, not {tuple(call.out_size)}")
    lengths.update((_size(number), size) for number, size in enumerate(call.out_size))
    return lengths, devices[0]


def _size(number: int) -> str:
    """The name of a length that only the result has."""
    return f"out_{number}"


def _kernel(call: Call, lengths: Mapping[str, int], device: torch.device) -> Kernel:
    inputs = tuple(
        (_dtype(tensor), tuple(axis if axis.isupper() else int(lengths[axis]) for axis in axes.split()))
        for tensor, axes in call.tensors.values()
    )
    sizes = tuple(map(_size, range(len(call.out_size))))
    key = call.build, inputs, sizes, repr(call.options), device
    if key not in _kernels:
        with _compiling:
            if key not in _kernels:
                try:
                    _kernels[key] = Kernel(
                        partial(call.build, **call.options), inputs, sizes, _target(device)
                    )
                except tvm.TVMError as error:
                    raise ValueError(str(error)) from None
    return _kernels[key]


@lru_cache
def _target(device: torch.device) -> tvm.target.Target:
    if device.type == "cpu":
        return cpu_target()
    major, minor = torch.cuda.get_device_capability(device)
    return tvm.target.Target(f"cuda -arch=sm_{major}{minor}", host=cpu_target())


def _plain(tensor: Any, call: Call) -> torch.Tensor:
    """The same as a tensor whose address a kernel can take; raises an error for what the call refuses."""
    if isinstance(tensor, float):
        first: Any = next(iter(call.tensors.values()))[0]
        return _scalar(tensor, first.device)
    is_usual = (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_neg() or (tensor.requires_grad and torch.is_grad_enabled()))
    )
    if not is_usual:
        _checked(call)
        if type(tensor).__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
            raise TypeError(f"{call.name}: a {type(tensor).__name__} has no memory of its own for a kernel")
        tensor = tensor.detach().resolve_neg()  # some views, as of a conjugate, have a pending negation
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def _scalar(value: float, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.full((), value, dtype=torch.float32, device=device)  # it lives as long as the graph
    return _on_device(value, device)


@lru_cache
def _on_device(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device=device)


def _empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _one_or_all(results: list[torch.Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _dtype(tensor: Value) -> str:
    return "float32" if isinstance(tensor, float) else str(tensor.dtype).replace("torch.", "")
