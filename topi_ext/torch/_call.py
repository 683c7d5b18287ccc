"""Call a Relay operator on torch tensors: one kernel per class of shapes, in torch's memory and stream."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

import tvm
from tvm import relay

from .._cpu_target import cpu_target
from ._kernels import Kernel, Signature

ALIGNMENT = 64  # in bytes, that TVM requires of the address of a tensor

_kernels: dict[tuple[Any, ...], Kernel] = {}
_compiling = threading.Lock()

# By default TVM uses half of the cores, and binds its threads to the same ones in every process.
os.environ.setdefault("TVM_NUM_THREADS", str(torch.get_num_threads()))
os.environ.setdefault("TVM_BIND_THREADS", "0")
# The threads are not there in a forked process, such as a worker of a DataLoader, which would wait for them.
os.register_at_fork(after_in_child=lambda: os.environ.update(TVM_NUM_THREADS="1"))


def call(
    name: str,
    build: Callable[..., relay.Expr],
    tensors: Mapping[str, tuple[torch.Tensor, str]],
    out_size: Sequence[int] = (),
    **options: Any,
) -> Any:
    """Run the Relay call that `build(*variables, *out_size, **options)` returns on tensors.

    `name`, and the names in `tensors`, are for errors. `tensors` has each tensor with its axes, such as
    "N c H W": a number is a fixed length; a letter is any length, the same wherever the letter occurs. One
    kernel serves all lengths of capital letters and all of `out_size`. For each length of a small letter, and
    for other types and options, another one is compiled.
    """
    lengths, device = _checked(name, tensors)
    signature = tuple(
        (_dtype(tensor), tuple(axis if axis.isupper() else lengths[axis] for axis in axes.split()))
        for tensor, axes in tensors.values()
    )
    sizes = {f"out_{number}": int(size) for number, size in enumerate(out_size)}
    if min(sizes.values(), default=1) < 1:
        raise ValueError(f"{name}: out_size must be above 0, not {tuple(out_size)}")
    kernel = _kernel(build, signature, tuple(sizes), options, device)
    lengths.update(sizes)
    outputs = kernel.outputs(*(lengths[axis] for axis in kernel.names))
    results = [_empty(*output, device) for output in outputs[: kernel.results]]
    if any(result.numel() for result in results):
        workspace = [_workspace(*output, device) for output in outputs[kernel.results :]]
        with _current_stream(device):
            inputs = [_to_tvm(tensor) for tensor, _ in tensors.values()]
            kernel(inputs, [*map(_to_tvm, results), *workspace])
    return results[0] if len(results) == 1 else tuple(results)


def _checked(
    name: str, tensors: Mapping[str, tuple[torch.Tensor, str]]
) -> tuple[dict[str, int], torch.device]:
    """The length of each axis by its name, and the device; raises an error for a bad tensor."""
    lengths: dict[str, int] = {}
    devices: list[torch.device] = []
    first = next(iter(tensors))
    for tensor_name, (tensor, all_axes) in tensors.items():
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
    device = devices[0]
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: there are kernels for tensors on cpu and cuda, not on {device.type}")
    return lengths, device


def _kernel(
    build: Callable[..., relay.Expr],
    signature: Signature,
    sizes: tuple[str, ...],
    options: dict[str, Any],
    device: torch.device,
) -> Kernel:
    key = build, signature, sizes, repr(options), device
    if key not in _kernels:
        with _compiling:
            if key not in _kernels:
                try:
                    _kernels[key] = Kernel(
                        lambda *variables: build(*variables, **options), signature, sizes, _target(device)
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


@contextlib.contextmanager
def _current_stream(device: torch.device) -> Iterator[None]:
    """Make TVM use torch's device and stream of this thread inside the block."""
    if device.type == "cpu":
        yield
        return
    on_tvm, before = tvm.cuda(device.index), tvm.get_global_func("runtime.get_cuda_stream")()
    with torch.cuda.device(device):
        # As a plain number the address would lose half its bits.
        on_tvm.set_raw_stream(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        try:
            yield
        finally:
            on_tvm.set_raw_stream(before)


def _to_tvm(tensor: torch.Tensor) -> tvm.nd.NDArray:
    """The same memory, or a copy if TVM does not accept its address."""
    if not tensor.numel():  # torch reports strides that TVM does not accept
        return _empty_in_tvm(tensor.shape, _dtype(tensor), tensor.device)
    tensor = tensor.detach().resolve_neg()  # some views, as of a conjugate, have a pending negation
    return tvm.nd.from_dlpack(to_dlpack(tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor))


def _empty(shape: Sequence[int], dtype: str, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _workspace(shape: Sequence[int], dtype: str, device: torch.device) -> tvm.nd.NDArray:
    if hasattr(torch, dtype):
        return _to_tvm(_empty(shape, dtype, device))
    return _empty_in_tvm(shape, dtype, device)  # torch has had some unsigned types since 2.3


def _empty_in_tvm(shape: Sequence[int], dtype: str, device: torch.device) -> tvm.nd.NDArray:
    return tvm.nd.empty(tuple(shape), dtype, tvm.device(device.type, device.index or 0))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")
