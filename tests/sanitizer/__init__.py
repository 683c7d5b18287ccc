"""Kernels compiled for LLVM that check every access to memory.

    with sanitized() as sanitizer:
        model = runtime.compile(mod, "llvm")
        model(x)
        sanitizer.check()  # raises OutOfBounds: "fused_take: reads T_take[77] of 64 elements"

TVM generates LLVM code by itself, so a compiler's own sanitizer never sees it. This inserts what one would,
into the last form that TVM lowers a kernel to: before each load and store a call, with the buffer, the index
and the number of elements. It is stricter than memory alone: an index that lands in another tensor is
outside too, and workspaces have bounds of their own. In a process with AddressSanitizer preloaded
(`asan_environment`), each access is looked up in its shadow memory as well, which knows what was freed.

Packed functions of C++ are out of reach, such as TVM's argsort for the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topi_ext import bootstrap  # noqa: F401  (before tvm)

import tvm
from tvm import tir

TYPES = [f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)]
TYPES += ["bool", "bfloat16", "handle"]


class OutOfBounds(AssertionError):
    """A kernel went outside one of its buffers."""


class Sanitizer:
    """The accesses of kernels that were compiled in the pass context of `sanitized`."""

    def __init__(self) -> None:
        self._library = _library()
        self._sites: list[str] = []
        self._library.sanitizer_take(ctypes.byref(_Access()))

    def checked(self) -> int:
        """How many accesses have been checked in this process."""
        return self._library.sanitizer_checked()

    def check(self) -> None:
        """Raise for the first access outside since the last time."""
        access = _Access()
        number = self._library.sanitizer_take(ctypes.byref(access))
        if number:
            site = self._sites[access.site]
            raise OutOfBounds(f"{site}[{access.index}] of {access.extent} elements ({number} such accesses)")

    def instrumented(self, function: tir.PrimFunc, _mod: tvm.IRModule, _ctx: object) -> tir.PrimFunc:
        """The kernel with each index `i` as `access(buffer, i)`, which is `i` where that is inside."""
        name = str(function.attrs["global_symbol"]) if function.attrs else "a kernel"
        arguments = {buffer.data: buffer for buffer in function.buffer_map.values()}

        def keep_address(node: tir.PrimExpr) -> tir.PrimExpr | None:
            is_address = isinstance(node, tir.Call) and node.op.same_as(tvm.ir.Op.get("tir.address_of"))
            return node if is_address else None

        def checked(node: tir.BufferLoad | tir.BufferStore) -> tir.PrimExpr | tir.Stmt | None:
            if isinstance(node, tir.BufferLoad):
                index = self._index(f"{name}: reads {node.buffer.name}", node, arguments)
                return tir.BufferLoad(node.buffer, [index])
            if isinstance(node, tir.BufferStore):
                index = self._index(f"{name}: writes {node.buffer.name}", node, arguments)
                return tir.BufferStore(node.buffer, node.value, [index])
            return None

        kinds = ["tir.BufferLoad", "tir.BufferStore", "tir.Call"]
        return function.with_body(tir.stmt_functor.ir_transform(function.body, keep_address, checked, kinds))

    def _index(
        self, site: str, access: tir.BufferLoad | tir.BufferStore, arguments: dict[tir.Var, tir.Buffer]
    ) -> tir.PrimExpr:
        """The index of an access, checked; of a vector each element, or the first and the last of a ramp."""
        self._sites.append(site)
        (index,), (extent,) = access.indices, access.buffer.shape
        size = _bytes(access.buffer)
        argument = arguments.get(access.buffer.data)
        if argument is not None:  # whose strides of 0, where a length is 1, are no part of its extent
            extent = functools.reduce(operator.mul, argument.shape, tir.const(1, "int64")) * _bytes(argument)
            extent = tir.floordiv(extent, size)
        pointee = access.buffer.data.type_annotation.element_type.dtype.partition("x")[0]

        def checked(
            index: tir.PrimExpr, low: tir.PrimExpr | int = 0, high: tir.PrimExpr | int = 0
        ) -> tir.PrimExpr:
            numbers = map(tvm.runtime.convert, (index, low, high, extent, size, len(self._sites) - 1))
            numbers = [number.astype("int64") for number in numbers]
            found = tir.call_extern("int64", f"sanitizer_access_{pointee}", access.buffer.data, *numbers)
            return found.astype(index.dtype)

        lanes = tvm.DataType(index.dtype).lanes
        if lanes == 1:
            return checked(index)
        if isinstance(index, tir.Broadcast):
            return tir.Broadcast(checked(index.value), lanes)
        if isinstance(index, tir.Ramp):
            last = index.stride * (lanes - 1)
            return tir.Ramp(checked(index.base, tir.min(last, 0), tir.max(last, 0)), index.stride, lanes)
        vector = tir.Var("index", index.dtype)
        each = [checked(tir.Shuffle([vector], [lane])) for lane in range(lanes)]
        return tir.Let(vector, index, tir.Shuffle(each, list(range(lanes))))


def _bytes(buffer: tir.Buffer) -> int:
    """Of an element."""
    element = tvm.DataType(buffer.dtype)
    return max(element.bits, 8) * element.lanes // 8


@contextlib.contextmanager
def sanitized() -> Iterator[Sanitizer]:
    """The pass context in which kernels for LLVM are compiled so that they check what they access."""
    sanitizer = Sanitizer()
    passes = tir.transform.prim_func_pass(sanitizer.instrumented, opt_level=0, name="Sanitize")
    with tvm.transform.PassContext(opt_level=3, config={"tir.add_lower_pass": [(3, passes)]}):
        yield sanitizer
        sanitizer.check()


def asan_environment() -> dict[str, str]:
    """The environment of a process in which AddressSanitizer watches over the heap."""
    libraries = map(_library_of_gcc, ("libasan.so", "libstdc++.so"))  # whose exceptions the former hooks
    # LLVM inside libtvm.so allocates with one operator and frees with another; its leaks are none of ours.
    options = "detect_leaks=0:verify_asan_link_order=0:new_delete_type_mismatch=0"
    # Python's own allocator would give the memory that it frees to the next who asks.
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": options,
        "PYTHONMALLOC": "malloc",
    }


def _library_of_gcc(name: str) -> str:
    command = [_compiler(), f"-print-file-name={name}"]
    library = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    if not library.exists():
        pytest.skip(f"needs {name}, which comes with gcc")
    return str(library.resolve())


class _Access(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("site", "index", "extent")]


@functools.cache
def _library() -> ctypes.CDLL:
    """Its symbols are there for whatever TVM compiles in this process."""
    library = Path(tempfile.mkdtemp()) / "accesses.so"
    types = "\n".join(f"OF_TYPE({name})" for name in TYPES)
    source = Path(__file__).with_name("accesses.c").read_text().replace("\nTYPES\n", f"\n{types}\n")
    command = [_compiler(), "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.sanitizer_checked.restype = loaded.sanitizer_take.restype = ctypes.c_int64
    return loaded


def _compiler() -> str:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    return compiler
