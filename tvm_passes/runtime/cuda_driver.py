"""The library of the CUDA driver, which is installed wherever there is a GPU."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

HANDLE = POINTER(c_void_p)  # where a handle is written
FUNCTIONS = {
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (HANDLE, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (HANDLE,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuEventCreate": (HANDLE, c_uint),
    "cuEventQuery": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuStreamCreate": (HANDLE, c_uint),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, HANDLE),
    "cuStreamGetCaptureInfo_v2": (
        c_void_p,
        POINTER(c_int),
        c_void_p,
        c_void_p,
        POINTER(HANDLE),
        POINTER(c_size_t),
    ),
    "cuStreamUpdateCaptureDependencies": (c_void_p, HANDLE, c_size_t, c_uint),
    "cuGraphInstantiateWithFlags": (HANDLE, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}
# Of CUDA 12.4.
OPTIONAL = {
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphNodeGetDependencies": (c_void_p, HANDLE, POINTER(c_size_t)),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
}


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class Driver:
    """Calls the functions above, and raises an exception for an error."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)
        for name, types in (FUNCTIONS | OPTIONAL).items():
            function = getattr(self._library, name, None)
            if function is None and name in OPTIONAL:
                continue
            if function is None:
                raise CudaError(
                    f"libcuda.so.1 has no {name}: there is no driver, or one older than CUDA 11.4"
                )
            function.argtypes, function.restype = types, c_int

    def __call__(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            meaning = c_char_p()
            self._library.cuGetErrorString(status, byref(meaning))
            raise CudaError(f"{name}: {(meaning.value or b'unknown error').decode()} ({status})")

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def holds(self, name: str, *args: Any) -> bool:
        """The answer of a function that asks whether work is done."""
        return not getattr(self._library, name)(*args)

    def made(self, name: str, *args: Any) -> int | None:
        """The handle that a function returns through its first argument."""
        handle = c_void_p()
        self(name, byref(handle), *args)
        return handle.value


@functools.cache
def driver() -> Driver:
    return Driver()
