"""Compile the CUDA kernels of a network in parallel, and those known from before not at all.

TVM gives nvcc all kernels of a network as one source, which it compiles on one core. Importing this module
divides the kernels among as many sources as there are cores, each with its own module for the device, and
keeps what nvcc makes of each in the user's cache: by the source, the flags and the version of nvcc. A kernel
is compiled as before, so it runs as fast. Networks have no equal kernels to share: TVM lowers equal functions
once.

A `tvm_callback_cuda_compile` that the user registers gets the whole source, as ever; so does nvcc where
"cuda.kernels_output_dir" asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tvm
from tvm.contrib import nvcc

from ..bootstrap import user_cache
from ..bootstrap.threads import cores
from . import backend  # noqa: F401  it writes exact constants into each part that is built here

COMPILE, BUILD = "tvm_callback_cuda_compile", "target.build.cuda"
OUTPUT_DIR = "cuda.kernels_output_dir"
PART = 60_000  # characters, which nvcc compiles in the time that it takes to start
START = re.compile(r'(?=^extern "C" __global__ )', re.MULTILINE)
KERNEL = re.compile(START.pattern + r".*?(\w+)\([^(\n]*$", re.MULTILINE)
LAUNCHED_BY_THE_HOST = 2  # the calling convention of a kernel
READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH")


class Source(NamedTuple):
    """What nvcc gets."""

    code: str
    flags: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same kernels in any order: TVM orders them by their addresses in memory."""
        kernels = sorted(part.strip() for part in START.split(self.code))
        variables = [os.environ.get(name) for name in READ_BY_NVCC]
        everything = json.dumps([kernels, self.flags, variables, _version_of(shutil.which("nvcc"))])
        return hashlib.sha256(everything.encode()).hexdigest()

    def compile(self) -> bytes:
        return bytes(nvcc.compile_cuda(self.code, target_format="fatbin", arch=list(self.flags)))


class _State(threading.local):
    """What `_compile` does in this thread: it collects sources in `asked`, and answers with those `known`."""

    asked: list[Source] | None = None
    known: dict[Source, bytes] | None = None


_state = _State()


def compile_all(sources: Sequence[Source]) -> dict[Source, bytes]:
    """Each source compiled: from the cache, or all at once by as many processes as there are cores."""
    distinct = list(dict.fromkeys(sources))
    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(distinct, pool.map(_loaded_or_compiled, distinct)))


def _loaded_or_compiled(source: Source) -> bytes:
    binary = user_cache.load(source.key)
    if binary is None:
        binary = source.compile()
        user_cache.store(source.key, binary)
    return binary


@functools.lru_cache
def _version_of(program: str | None) -> str:
    if program is None:
        return ""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout


def _compile(code: str, target: tvm.target.Target) -> bytearray:
    """TVM's callback: collects a source where `_build` wants to know it, else compiles it."""
    if OUTPUT_DIR in tvm.transform.PassContext.current().config:
        return _stock_compile(code, target)
    version = nvcc.get_target_compute_version(tvm.target.Target.current(allow_none=True)).replace(".", "")
    source = Source(code, ("-gencode", f"arch=compute_{version},code=sm_{version}"))
    if _state.asked is not None:
        _state.asked.append(source)
        return bytearray(b"not compiled yet")
    known = _state.known or {}
    return bytearray(known[source] if source in known else _loaded_or_compiled(source))


def _build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """TVM's build of kernels, in parts: it writes the source in no time, so it may do so several times."""
    with _collected() as whole:
        built = _stock_build(mod, target)
    if not whole:  # something else than `_compile` has compiled it
        return built
    parts = _parts(mod, whole[0].code)
    with _collected() as sources:
        for part in parts:
            _stock_build(part, target)
    with _answered(compile_all(sources)):
        first, *others = (_stock_build(part, target) for part in parts)
    for other in others:
        first.import_module(other)  # TVM looks for a kernel in the modules that a module imports, too
    return first


@contextlib.contextmanager
def _collected() -> Iterator[list[Source]]:
    _state.asked = []
    try:
        yield _state.asked
    finally:
        _state.asked = None


@contextlib.contextmanager
def _answered(known: dict[Source, bytes]) -> Iterator[None]:
    _state.known = known
    try:
        yield
    finally:
        _state.known = None


def _parts(mod: tvm.IRModule, code: str) -> list[tvm.IRModule]:
    """The kernels in parts that take equally long to compile, by the length of their source."""
    count = min(cores(), len(mod.functions), 1 + len(code) // PART)
    conventions = [int(function.attrs["calling_conv"]) for function in mod.functions.values()]
    if count == 1 or any(convention != LAUNCHED_BY_THE_HOST for convention in conventions):
        return [mod]
    found = [*KERNEL.finditer(code)]
    ends = [*(each.start() for each in found[1:]), len(code)]
    # a kernel is declared first: the definition counts
    lengths = {each.group(1): end - each.start() for each, end in zip(found, ends)}
    parts: list[dict[Any, Any]] = [{} for _ in range(count)]
    filled = [0] * count
    for name in sorted(mod.functions, key=lambda name: (-lengths.get(name.name_hint, 0), name.name_hint)):
        emptiest = filled.index(min(filled))
        parts[emptiest][name] = mod[name]
        filled[emptiest] += lengths.get(name.name_hint, 0) + 1
    return [tvm.IRModule(part, attrs=mod.attrs) for part in parts]


_stock_compile = tvm.get_global_func(COMPILE, allow_missing=True)
_stock_build = tvm.get_global_func(BUILD, allow_missing=True)
if _stock_compile is not None and _stock_build is not None:
    tvm.register_func(COMPILE, _compile, override=True)
    tvm.register_func(BUILD, _build, override=True)
