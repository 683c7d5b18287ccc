"""Choose the TVM that `import tvm` imports: one with Relay, or 0.27, whose graphs are Relax's.

1. A TVM that is already imported is used.
2. Else a TVM on the path is used if it has Relay: the user's own build.
3. Else the one inside the `bitblas` wheel is put first on the path, also before an `apache-tvm` without
   Relay.
4. Else that `apache-tvm` is used.

Where both are installed, `TVM_PASSES_IR=relax` chooses the latter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from . import fast_ffi
from .find_libraries import load_cuda_libraries, load_if_there
from .not_installed import remedy, says_what_to_do
from .threads import share_threads

SWITCH = "TVM_PASSES_IR"
RELAY, RELAX = "relay", "relax"  # what its graphs are
IMPORTED, ON_PATH, CARRIED = "already imported", "on the path", "carried by bitblas"
OWN_FFI = "as it was imported"
# Of the runtime, which TVM loads with its compiler only: sorting and the like on CPUs, and CUDA.
PARTS = "libtvm_runtime_extra.so", "libtvm_runtime_cuda.so"
RELAX_VERSION = "0.27."  # each release renames much of what kernels use
INSTALL_HINT = (
    "Install the wheel that carries a TVM with Relay (`pip install bitblas==0.1.0`), "
    "or put your own build of TVM 0.12 to 0.19 on PYTHONPATH; "
    f'for Relax, `pip install "apache-tvm=={RELAX_VERSION}*"`.'
)


@dataclass(frozen=True)
class TvmInUse:
    """The TVM that was chosen, and why."""

    version: str
    folder: Path
    origin: str  # IMPORTED, ON_PATH or CARRIED
    ffi: str = OWN_FFI  # or "Cython", or "ctypes" and the reason
    dialect: str = RELAY  # or RELAX
    shares_threads: bool = False  # with oneDNN
    compiles: bool = True  # or it only runs what was compiled, as where TVM_USE_RUNTIME_LIB=1

    @property
    def has_relay(self) -> bool:
        return self.dialect == RELAY

    def require_relay(self, package: str, instead: str = "") -> None:
        """Raise an ImportError, for a package that has nothing for Relax, if this is not a TVM with Relay."""
        if not self.has_relay:
            raise ImportError(
                f"{package} needs a TVM with Relay, and this process has TVM {self.version}, {self.origin}. "
                f"{instead}{INSTALL_HINT}"
            )

    def require_compiler(self, package: str) -> None:
        """Raise an ImportError if this TVM only runs what was compiled."""
        if not self.compiles:
            raise self.error_without_compiler(package)

    def error_without_compiler(self, package: str) -> ImportError:
        """The error of a package that compiles, where this TVM only runs what was compiled."""
        return ImportError(
            f"{package} needs TVM's compiler, and this process has its runtime alone: "
            "unset TVM_USE_RUNTIME_LIB, or run what was compiled elsewhere"
        )

    def getattr_without_relay(self, package: str, instead: str = "") -> Callable[[str], Any]:
        """The `__getattr__` of a package: what its `__all__` names and it does not define needs Relay."""

        def getattr_(name: str) -> Any:
            if name in sys.modules[package].__all__:
                self.require_compiler(f"{package}.{name}")
                self.require_relay(f"{package}.{name}", instead)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")

        return getattr_

    def error_without_relax(self, package: str) -> ImportError:
        """The error of a package that has nothing for Relay, where this is a TVM with Relay."""
        wanted = RELAX_VERSION.rstrip(".")
        return ImportError(
            f"{package} needs TVM {wanted}, and this process has {self.version}, {self.origin}. "
            'Install it by `pip install "tvm-vision-passes[relax]"`; where both are installed, set '
            f"{SWITCH}={RELAX}."
        )


def import_tvm() -> TvmInUse:
    """Import the TVM of choice under the name `tvm`, or raise an ImportError that says what to do."""
    folder, origin = _imported() if "tvm" in sys.modules else _chosen()
    if origin == CARRIED:
        sys.path.insert(0, str(folder.parent))
        importlib.invalidate_caches()
    dialect = _dialect_of(folder)
    load_cuda_libraries(dialect)
    shares_threads = origin != IMPORTED and share_threads()
    compiled = fast_ffi.compiled(folder) if origin != IMPORTED and dialect == RELAY else nullcontext(OWN_FFI)
    with says_what_to_do(), compiled as ffi:
        tvm = importlib.import_module("tvm")
    if dialect == RELAX and not tvm.__version__.startswith(RELAX_VERSION):
        raise ImportError(
            f"the TVM that is {origin}, {tvm.__version__} from {folder}, has no Relay, and of those with "
            f"Relax only {RELAX_VERSION}* is known. To use another one, import tvm_passes, topi_ext or "
            f"frontends before tvm. {INSTALL_HINT}"
        )
    compiles = dialect == RELAY or not tvm.base._RUNTIME_ONLY
    if not compiles:
        for part in PARTS:
            load_if_there(Path(tvm.base._LOADED_LIBS["tvm_runtime"]._name).parent / part)
    return TvmInUse(tvm.__version__, folder, origin, ffi, dialect, shares_threads, compiles)


def _imported() -> tuple[Path, str]:
    folder = _folder_of(sys.modules["tvm"].__spec__)
    if folder is None:
        raise ImportError(f"the TVM that is already imported has no folder. {INSTALL_HINT}")
    return folder, IMPORTED


def _chosen() -> tuple[Path, str]:
    """The folder of a TVM, and where it was found."""
    wanted = os.environ.get(SWITCH)
    if wanted not in (None, RELAY, RELAX):
        raise ImportError(f"{SWITCH} must be {RELAY} or {RELAX}, not {wanted!r}")
    on_path = _folder_of(importlib.util.find_spec("tvm"))
    found = [(on_path, ON_PATH), (_carried(), CARRIED)]
    for dialect in (wanted,) if wanted else (RELAY, RELAX):
        for folder, origin in found:
            if folder is not None and _dialect_of(folder) == dialect:
                return folder, origin
    reason = f"the one at {on_path} is another" if on_path else remedy()
    raise ImportError(f"no TVM with {(wanted or RELAY).capitalize()} was found: {reason}. {INSTALL_HINT}")


def _dialect_of(folder: Path) -> str:
    return RELAY if _has_relay(folder) else RELAX


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
