"""Load a library from a file of which an earlier version may be loaded still."""

from __future__ import annotations

import tempfile
from pathlib import Path

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm


def loaded(file: Path) -> tvm.runtime.Module:
    """The module in a file, by a path that no library was loaded by.

    By the path of one that is still loaded, the system's loader gives that one, whatever the file now has.
    `tvm.runtime.load_module` would follow the link.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file.name)
        path.symlink_to(file.resolve())
        if tvm_in_use.has_relay:
            return tvm.get_global_func("runtime.ModuleLoadFromFile")(str(path), "")
        import tvm_ffi

        return tvm_ffi.load_module(str(path))
