"""Choose the TVM that `import tvm` imports.

1. A TVM that is already imported is used if it has Relay.
2. Else a TVM on the path is used if it has Relay: the user's own build.
3. Else the one inside the `bitblas` wheel is put first on the path, also before an `apache-tvm` without
   Relay.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from . import fast_ffi
from .find_libraries import load_cuda_libraries
from .not_installed import remedy, says_what_to_do

INSTALL_HINT = (
    "Install the wheel that carries a TVM with Relay (`pip install bitblas==0.1.0`), "
    "or put your own build of TVM 0.12 to 0.19 on PYTHONPATH."
)


@dataclass(frozen=True)
class TvmInUse:
    """The TVM that was chosen, and why."""

    version: str
    folder: Path
    origin: str  # "already imported", "on the path" or "carried by bitblas"
    ffi: str = "as it was imported"  # or "Cython", or "ctypes" and the reason


def import_relay_tvm() -> TvmInUse:
    """Import a TVM with Relay under the name `tvm`, or raise an ImportError that says what to do."""
    if "tvm" in sys.modules:
        folder, origin = _folder_of(sys.modules["tvm"].__spec__), "already imported"
        if folder is None or not _has_relay(folder):
            raise ImportError(
                f"the TVM that is already imported, from {folder}, has no Relay; import tvm_passes, "
                f"topi_ext or frontends before tvm. {INSTALL_HINT}"
            )
        return TvmInUse(sys.modules["tvm"].__version__, folder, origin)
    folder, origin = _folder_of(importlib.util.find_spec("tvm")), "on the path"
    if folder is None or not _has_relay(folder):
        without_relay, folder, origin = folder, _carried(), "carried by bitblas"
        if folder is None:
            found = f"the one at {without_relay} has no Relay" if without_relay else remedy()
            raise ImportError(f"no TVM with Relay was found: {found}. {INSTALL_HINT}")
        sys.path.insert(0, str(folder.parent))
        importlib.invalidate_caches()
    load_cuda_libraries()
    with says_what_to_do(), fast_ffi.compiled(folder) as ffi:
        tvm = importlib.import_module("tvm")
    return TvmInUse(tvm.__version__, folder, origin, ffi)


def _folder_of(spec: ModuleSpec | None) -> Path | None:
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _has_relay(folder: Path) -> bool:
    return (folder / "relay" / "__init__.py").is_file()


def _carried() -> Path | None:
    """The TVM inside the bitblas wheel, found without importing bitblas, which imports much else."""
    bitblas = _folder_of(importlib.util.find_spec("bitblas"))
    folder = bitblas / "3rdparty" / "tvm" / "python" / "tvm" if bitblas else None
    return folder if folder and _has_relay(folder) else None
