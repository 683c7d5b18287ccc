"""Kernels compiled at run time for this processor, and kept in the user's cache for the next process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tvm

from ..bootstrap import user_cache

FORMAT = "ll"  # LLVM's, of which the machine's code is made in no time
OF_TVM = ("GIT_COMMIT_HASH", "LLVM_VERSION")  # which decide what a kernel becomes


def built(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """`tvm.build` for the target that functions have as an attribute, or what it gave earlier."""
    key = _key(mod)
    code = user_cache.load(key)
    if code is not None:
        # What this LLVM cannot read is built anew.
        with contextlib.suppress(tvm.TVMError, OSError), _file() as path:
            path.write_bytes(code)
            return tvm.runtime.load_module(str(path))
    lib = tvm.build(mod, target)
    with contextlib.suppress(OSError), _file() as path:
        lib.save(str(path), FORMAT)
        user_cache.store(key, path.read_bytes())
    return lib


def _key(mod: tvm.IRModule) -> str:
    about = tvm.support.libinfo()
    everything = json.dumps([*(about.get(name) for name in OF_TVM), tvm.ir.structural_hash(mod)])
    return hashlib.sha256(everything.encode()).hexdigest()


@contextlib.contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, f"kernel.{FORMAT}")
