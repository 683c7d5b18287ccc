"""A driver for the emulated device: `fake_cuda.c`, compiled with the header of the real one."""

import ctypes
import functools
import importlib.util
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tvm_passes.runtime import cuda, cuda_driver, input_readers


class FakeCuda:
    """What the driver is asked, as text: `notes()`; and what a launched graph does: `replay`."""

    def __init__(self, library):
        self.driver = cuda_driver.Driver(str(library))
        self._library = ctypes.CDLL(str(library))
        self._library.fake_notes.restype = ctypes.c_char_p
        self.replay = None
        self._on_launch = ctypes.CFUNCTYPE(None)(lambda: self.replay())
        self.stream = 0  # of TVM
        self.reset()
        self.work_is_done(False)  # the library is that of earlier tests, too
        self.kernel()

    def reset(self):
        self._library.fake_reset(self._on_launch)

    def invalidate_next_capture(self):
        self._library.fake_invalidate_next_capture()

    def work_is_done(self, done=True):
        """Whether the work that was queued is done when it is asked for; otherwise it never is."""
        self._library.fake_work_is_done(int(done))

    def kernel(self, *parameters, type=0):
        """All nodes have this type and these parameters, each a number of a type of ctypes."""
        values = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        sizes = (ctypes.c_size_t * len(parameters))(*map(ctypes.sizeof, parameters))
        self._kernel = parameters, values, sizes
        self._library.fake_kernel(ctypes.c_int(type), ctypes.c_size_t(len(parameters)), values, sizes)

    def notes(self):
        """Since the last time."""
        notes = self._library.fake_notes().decode().split()
        self.reset()
        return notes

    def use_stream(self, _device, stream):
        self.stream = stream


@pytest.fixture
def fake_cuda(monkeypatch):
    """The driver and TVM's stream are fake, for whatever runs on the emulated device."""
    include, compiler = _include(), shutil.which("cc")
    if include is None or compiler is None:
        pytest.skip("needs a C compiler and cuda.h")
    fake = FakeCuda(_library(compiler, include))
    for module in (cuda, input_readers):
        monkeypatch.setattr(module, "driver", lambda: fake.driver)
    monkeypatch.setattr(cuda, "_context", functools.cache(cuda._context.__wrapped__))
    monkeypatch.setattr(cuda, "_this_thread", threading.local())
    monkeypatch.setattr(cuda, "current_stream", lambda _device: fake.stream)
    monkeypatch.setattr(cuda, "_use_stream", fake.use_stream)
    return fake


@functools.cache
def _library(compiler, include):
    folder = Path(tempfile.mkdtemp())
    source, library = Path(__file__).with_suffix(".c"), folder / "fake_cuda.so"
    options = ["-shared", "-fPIC", "-Wall", "-Werror", "-I", str(include)]
    subprocess.run([compiler, *options, "-o", library, source], check=True)
    return library


def _include():
    """The folder of cuda.h, which the wheel of the CUDA runtime carries."""
    nvidia = importlib.util.find_spec("nvidia")
    for folder in nvidia.submodule_search_locations if nvidia else ():
        include = Path(folder, "cuda_runtime", "include")
        if (include / "cuda.h").exists():
            return include
    return None
