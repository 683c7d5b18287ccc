"""Load the shared libraries that a CUDA-enabled TVM links to, before it is loaded itself.

The dynamic linker reuses a library that is already loaded under the name it looks for. So the CUDA 12 runtime
may come from the system or from NVIDIA's wheels, and a missing driver is replaced by a stub that answers
"no device" to every call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from .not_installed import IS_CLONE, remedy

CUDA_RUNTIME = {  # by what the graphs of a TVM are, {soname: the wheel's folder below `nvidia`}
    "relay": {"libnvrtc.so.12": "cuda_nvrtc", "libcudart.so.12": "cuda_runtime"},
    "relax": {"libcudart.so.13": "cu13"},
}
CUDNN = "libcudnn.so.9"
DRIVER = "libcuda.so.1"
DRIVER_STAND_IN = Path(__file__).with_name("libcuda_absent.so")


def load_cuda_libraries(dialect: str) -> None:
    """Load the libraries that can be found; the linker names missing ones when libtvm.so needs them."""
    for soname, wheel in CUDA_RUNTIME[dialect].items():
        load_if_there(soname) or any(load_if_there(path) for path in _in_wheels(wheel, soname))
    if not load_if_there(DRIVER):
        if IS_CLONE:
            compile_if_older(DRIVER_STAND_IN)
        load_if_there(DRIVER_STAND_IN)


def load_cudnn() -> None:
    """Load cuDNN for its Python package, which searches only one folder; TVM does not need it.

    A process can load only one, and a torch from a wheel needs that of the wheels, even if imported later.
    """
    _is_loaded(CUDNN) or any(load_if_there(path) for path in _in_wheels("cudnn", CUDNN)) or load_if_there(
        CUDNN
    )


def driver_version() -> str | None:
    """The CUDA version of NVIDIA's driver, such as "13.0"; None if the stub replaces it."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # the stub has few of the driver's functions
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def compile_if_older(stand_in: Path) -> None:
    """Compile the stub anew if its source has changed since: a newer TVM may need functions that it lacks."""
    source = stand_in.with_suffix(".c")
    if not stand_in.is_file() or stand_in.stat().st_mtime >= source.stat().st_mtime:
        return
    try:
        with tempfile.TemporaryDirectory(dir=stand_in.parent) as folder:
            new = Path(folder, stand_in.name)
            command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", str(source), "-o", str(new)]
            subprocess.run(command, check=True, capture_output=True)
            new.replace(stand_in)  # atomically: another process may be loading it
    except (OSError, subprocess.CalledProcessError) as error:
        warnings.warn(f"{stand_in.name} is older than its source ({error}): {remedy()}", stacklevel=2)


def _is_loaded(soname: str) -> bool:
    return load_if_there(soname, os.RTLD_NOLOAD)


def load_if_there(library: str | Path, mode: int = 0) -> bool:
    """Load a library for all that come after it, unless it or what it links to cannot be found."""
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL | mode)
    except OSError:
        return False
    return True


def _in_wheels(wheel: str, soname: str) -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield Path(folder, wheel, "lib", soname)
