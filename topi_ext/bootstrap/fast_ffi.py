"""Compile TVM's interface between Python and C++ for this Python, once per machine.

Passes and importers call into TVM a million times for a detector. A wheel for every Python version does that
through ctypes; TVM's own Cython sources, which the wheel contains, are several times as fast. They are
compiled on the first import, which takes ten seconds, and kept in the user's cache. Without a compiler,
everything works through ctypes. `TVM_FFI=ctypes`, TVM's own switch, disables this.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from . import user_cache

MODULE = "tvm._ffi._cy3.core"
HEADERS = Path(__file__).with_name("ffi_headers")
SECONDS = 300
# Passages of TVM's sources, and what is compiled in their place. The first makes a handle that nothing takes,
# in half of the time that an object needs on its way to Python. The other asks abstract classes about an
# argument before it sees that it is a text or an int, such as the name of an attribute, or an index. The
# others are for `corrections/objects.py`.
FASTER = {
    """\
    handle = ctypes_handle(chandle)
    CHECK_CALL(TVMObjectGetTypeIndex(""": """\
    CHECK_CALL(TVMObjectGetTypeIndex(""",
    """\
    elif isinstance(arg, NDArrayBase):
        value[0].v_handle""": """\
    elif type(arg) is str:
        tstr = c_str(arg)
        value[0].v_str = tstr
        tcode[0] = kTVMStr
        temp_args.append(tstr)
    elif type(arg) is int:
        value[0].v_int64 = arg
        tcode[0] = kInt
    elif isinstance(arg, NDArrayBase):
        value[0].v_handle""",
    """\
    property handle:
        def __get__(self):
            return ctypes_handle""": """\
    def __hash__(self):
        return <Py_hash_t>self.chandle

    def is_the_same(self, other):
        return isinstance(other, ObjectBase) and self.chandle == (<ObjectBase>other).chandle

    property handle:
        def __get__(self):
            return ctypes_handle""",
    """\
def _get_global_func(""": """\
cdef class Field:
    cdef bytes name
    cdef PackedFuncBase get

    def __init__(self, name):
        self.name, self.get = c_str(name), _get_global_func("node.NodeGetAttr", False)

    def __get__(self, ObjectBase node, owner):
        cdef TVMValue[2] values
        cdef int[2] codes
        cdef TVMValue result
        cdef int code = kTVMNullptr
        if node is None:
            return self
        values[0].v_handle, codes[0] = node.chandle, kTVMObjectHandle
        values[1].v_str, codes[1] = self.name, kTVMStr
        CHECK_CALL(TVMFuncCall(self.get.chandle, values, codes, 2, &result, &code))
        return make_ret(result, code)


def _get_global_func(""",
}


class CannotBuild(Exception):
    """The interface cannot be compiled; the message is the reason."""


class _Finder:
    """Finds the compiled module, which lies elsewhere, under the name that TVM imports."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self._library) if name == MODULE else None


@contextmanager
def compiled(tvm: Path) -> Iterator[str]:
    """For the import of `tvm` from that folder; yields how it calls C++: "Cython", or "ctypes" and why."""
    if os.environ.get("TVM_FFI", "auto") != "auto":
        yield os.environ["TVM_FFI"]
        return
    if _has_its_own(tvm):
        yield "Cython"
        return
    try:
        finder = _Finder(_library(tvm / "_ffi" / "_cython"))
    except (CannotBuild, OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        yield f"ctypes ({error})"
        return
    sys.meta_path.insert(0, finder)
    try:
        yield "Cython"
    finally:
        sys.meta_path.remove(finder)


def _has_its_own(tvm: Path) -> bool:
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    return any((tvm / "_ffi" / "_cy3" / f"core{suffix}").is_file() for suffix in suffixes)


def _library(sources: Path) -> Path:
    """The compiled module in the cache; it is compiled if it is not there yet."""
    files = [
        *sorted(sources.glob("*.p*")),
        *sorted(HEADERS.rglob("*.h")),
    ]  # in any two places, the same order
    if not any(file.name == "core.pyx" for file in files):
        raise CannotBuild(f"{sources} has no core.pyx")
    contents = [*(file.read_bytes() for file in files), repr(FASTER).encode()]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
    cache = user_cache.folder()
    library = cache / f"tvm_ffi-{digest}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            built = _build(sources, Path(folder))
            built.replace(library)  # atomically: another process may be doing the same
    return library


def _build(sources: Path, folder: Path) -> Path:
    if importlib.util.find_spec("Cython") is None:
        raise CannotBuild("Cython is not installed")
    print("Compiling TVM's interface for this Python, once: about ten seconds ...", file=sys.stderr)
    for source in sources.glob("*.p*"):
        (folder / source.name).write_text(_faster(source.read_text()))
    code, built = folder / "core.cpp", folder / "core.so"
    cython = [sys.executable, "-m", "cython", "--cplus", "-3", "--module-name", MODULE]
    _call([*cython, str(folder / "core.pyx"), "-o", str(code)])
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "g++")
    includes = [f"-I{HEADERS}", f"-I{sysconfig.get_path('include')}"]
    _call([*compiler, "-O2", "-shared", "-fPIC", *includes, str(code), "-o", str(built)])
    return built


def _faster(source: str) -> str:
    for stock, ours in FASTER.items():
        source = source.replace(stock, ours)
    return source


def _call(command: list[str]) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError:
        raise CannotBuild(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{Path(command[0]).name} took more than {SECONDS} s") from None
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if "error" in line.lower()]
        raise CannotBuild(said[0].strip() if said else f"{Path(command[0]).name} failed")
