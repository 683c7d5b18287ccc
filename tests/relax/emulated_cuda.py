"""The target "cuda" of TVM 0.27 without a GPU: g++ compiles kernels for the emulator of tests/cuda_on_cpu."""

import contextlib
import ctypes
import subprocess
from functools import cache
from pathlib import Path

import tvm_ffi

from tests.cuda_on_cpu.compile_source import compile_source, emulator_library
from tests.relax.modules import replaced
from tvm_passes.runtime.cuda_graphs import OPTION

import tvm

_libraries = []  # whose functions are called as long as the process lives


@contextlib.contextmanager
def emulate_cuda():
    """While it lasts, kernels for "cuda" run on the emulator. `tvm.cuda()` is its device from then on."""
    device = ctypes.c_void_p(_device())
    tvm.register_global_func("device_api.cuda", lambda: device, override=True)
    build = tvm.get_global_func("target.build.cuda")
    with (
        tvm.transform.PassContext(config={OPTION: False}),  # there are no graphs
        replaced("tvm_callback_cuda_compile", lambda _source: b"no binary is needed"),
        replaced("target.build.cuda", lambda module, target: _emulated(build(module, target), module)),
    ):
        yield


@cache
def _device():
    emulator = emulator_library()
    ctypes.CDLL(str(emulator), mode=ctypes.RTLD_GLOBAL)
    source, library = Path(__file__).with_name("device_api.cpp"), emulator.with_name("device_api.so")
    packages = [Path(package.__file__).parent for package in (tvm, tvm_ffi)]
    includes = [f"-I{package / 'include'}" for package in packages]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-O1", "-w", *includes, source, "-o", library]
    subprocess.run([*command, emulator, packages[0] / "lib" / "libtvm_runtime.so"], check=True)
    _libraries.append(ctypes.CDLL(str(library)))
    _libraries[-1].emulated_device.restype = ctypes.c_void_p
    return _libraries[-1].emulated_device()


def _emulated(built, module):
    parameters = {
        str(function.attrs["global_symbol"]): [
            str(tag) for tag in function.attrs["tirx.kernel_launch_params"]
        ]
        for function in module.functions.values()
    }
    path = str(compile_source(built.inspect_source(), parameters, sanitize="address"))
    library = ctypes.CDLL(path)
    ctypes.c_void_p.in_dll(library, "__TVMAPISetLastError").value = ctypes.cast(_raise, ctypes.c_void_p).value
    _libraries.append(library)
    return tvm_ffi.load_module(path)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _raise(message):
    _ffi.TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", message)


_ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
