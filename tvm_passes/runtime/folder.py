"""A compiled network in a folder: library, parameters, and a manifest that describes them.

Nothing is unpickled. But a library is code, which may run when it is loaded: the digests in the manifest
detect damage and mix-ups, not tampering by someone who can write the whole folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from topi_ext.bootstrap import tvm_in_use
from topi_ext.onednn import library as onednn

import tvm
from tvm import relay
from tvm.runtime.vm import Executable

from .executors import Library
from .model import Model, device_of

FORMAT = 1
MANIFEST, LIBRARY, PARAMETERS = "manifest.json", "library.so", "parameters.bin"
MIN_BYTES = 1024  # for constants of the virtual machine that are stored with the parameters


class FolderError(ValueError):
    """One sentence that says why a folder cannot be run here, and what to do about it."""


def save(
    folder: str | os.PathLike[str],
    lib: Library,
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    about: dict[str, Any] | None = None,
) -> None:
    """Write what `build_library` made of `mod` for `target`; `about` is kept in the manifest, as JSON."""
    folder, target = Path(folder), tvm.target.Target(target)
    folder.mkdir(parents=True, exist_ok=True)
    main = relay.transform.InferType()(mod)["main"]
    attrs = dict(main.attrs.items()) if main.attrs else {}
    is_graph = lib.module.implements_function("get_graph_json")
    (_save_graph if is_graph else _save_executable)(lib.module, folder)
    results = main.ret_type.fields if isinstance(main.ret_type, relay.TupleType) else [main.ret_type]
    names = attrs.get("output_names") or [f"output{index}" for index in range(len(results))]
    manifest = {
        "format": FORMAT,
        "versions": _versions(),
        "target": str(target),
        "machine": str(target.attrs.get("mtriple", platform.machine())).partition("-")[0],
        "executor": "graph" if is_graph else "vm",
        "inputs": [_described(param.name_hint, param.checked_type) for param in main.params],
        "outputs": [_described(str(name), type_) for name, type_ in zip(names, results)],
        "padded_rows": [[int(part) for part in rows] for rows in attrs.get("padded_rows") or []],
        "files": {name: _digest(folder / name) for name in (LIBRARY, PARAMETERS)},
        "about": about or {},
    }
    manifest["sha256"] = _digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def load(
    folder: str | os.PathLike[str], device: str | tvm.runtime.Device | None = None, **options: Any
) -> Model:
    """The `Model` that was saved, if it is complete and for this machine; `options` are those of `Model`.

    `cut=True` is for detectors that return padded outputs and the number of detections.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    _check_versions(folder, manifest)
    _check_files(folder, manifest)
    device = device_of(device or tvm.target.Target(manifest["target"]).kind.name)
    _check_machine(folder, manifest, device)
    lib = (_load_graph if manifest["executor"] == "graph" else _load_executable)(folder)
    if options.get("cut") is True and manifest["padded_rows"]:
        options["cut"] = manifest["padded_rows"]
    return Model(
        lib,
        device,
        output_names=[output["name"] for output in manifest["outputs"]],
        input_types={each["name"]: _type(each) for each in manifest["inputs"]},
        **options,
    )


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a folder that `save` wrote, if this version can read it; `sha256` identifies it."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: give a folder that was compiled to") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read ({error}): compile again") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FolderError(f"{path} is not the manifest of a compiled folder: compile again")
    if manifest["format"] != FORMAT:
        raise FolderError(
            f"{folder} has the format {manifest['format']}, and this version reads {FORMAT}: compile again"
        )
    digest = manifest.pop("sha256", None)
    if digest != _digest_of(manifest):
        raise FolderError(f"{path} was changed after it was written: compile again")
    return {**manifest, "sha256": digest}


def _versions() -> dict[str, str]:
    """The versions of the packages that a library may call at run time: TVM and this project."""
    try:
        own = importlib.metadata.version("tvm-vision-passes")
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        own = "not installed"
    return {"TVM": tvm_in_use.version, "tvm-vision-passes": own}


def _check_versions(folder: Path, manifest: dict[str, Any]) -> None:
    for name, here in _versions().items():
        if manifest["versions"][name] != here:
            versions = f"{name} {manifest['versions'][name]}, and this is {here}"
            raise FolderError(f"{folder} was compiled with {versions}: compile again")


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    for name in (LIBRARY, PARAMETERS):
        if not (folder / name).is_file():
            raise FolderError(f"{folder} has no {name}: compile again")
        if _digest(folder / name) != manifest["files"].get(name):
            raise FolderError(f"{folder / name} is not the file that was written there: compile again")


def _check_machine(folder: Path, manifest: dict[str, Any], device: tvm.runtime.Device) -> None:
    target = tvm.target.Target(manifest["target"])
    compiled = f"{folder} was compiled for {target}"
    if manifest["machine"] != platform.machine():
        raise FolderError(f"{compiled}, and this machine is {platform.machine()}: compile for this one")
    if target.kind.name == "llvm":
        lacking = _features(target) - _features_here()
        if lacking:
            names = ", ".join(sorted(lacking))
            raise FolderError(f"{compiled}, and this machine lacks {names}: compile for this one")
        if onednn.NAME in target.libs and onednn.library() is None:
            raise FolderError(
                f"{compiled}, and oneDNN is missing here: {onednn.INSTALL}, or compile for llvm"
            )
        return
    if not device.exist:
        raise FolderError(f"{compiled}, and there is no such device here: compile for llvm, or run elsewhere")
    wanted, found = str(target.attrs.get("arch", "")), device.compute_version
    here = f"sm_{found.replace('.', '')}" if found else ""
    if wanted and here and wanted.rstrip("a") != here:
        raise FolderError(f'{compiled}, and this GPU is {here}: compile for "cuda -arch={here}"')


def _features(target: tvm.target.Target) -> set[str]:
    """The vector extensions that an LLVM target requires, by their names in Linux."""
    names = [str(each) for each in target.attrs.get("mattr", []) if str(each).startswith("+")]
    if target.attrs.get("mcpu"):
        names += [str(each) for each in tvm.get_global_func("target.llvm_get_cpu_features")(target)]
    plain = {_plain(name) for name in names}
    return {name for name in plain if name.startswith(("avx", "fma", "sse"))}


def _features_here() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return {_plain(flag) for flag in flags.split()} | {"sse3"}  # Linux calls it pni


def _plain(name: str) -> str:
    return name.lstrip("+").replace("_", "").replace(".", "")


# --- what TVM compiled, and its parameters


def _save_graph(lib: tvm.runtime.Module, folder: Path) -> None:
    lib["remove_params"]().export_library(str(folder / LIBRARY))
    parameters = {str(name): value for name, value in lib["get_graph_params"]().items()}
    (folder / PARAMETERS).write_bytes(tvm.runtime.save_param_dict(parameters))


def _load_graph(folder: Path) -> tvm.runtime.Module:
    lib = tvm.runtime.load_module(str(folder / LIBRARY))
    parameters = tvm.runtime.load_param_dict((folder / PARAMETERS).read_bytes())
    pairs = [part for pair in parameters.items() for part in pair]
    create = tvm.get_global_func("tvm.graph_executor_factory.create")
    return create(lib["get_graph_json"](), lib.imported_modules[0], "default", *pairs)


def _save_executable(lib: tvm.runtime.Module, folder: Path) -> None:
    executable, parameters = Executable(lib), str(folder / PARAMETERS)
    executable.move_late_bound_consts(parameters, MIN_BYTES)
    lib.export_library(str(folder / LIBRARY))
    executable.load_late_bound_consts(parameters)  # which were moved out of it


def _load_executable(folder: Path) -> tvm.runtime.Module:
    lib = tvm.runtime.load_module(str(folder / LIBRARY))
    Executable(lib).load_late_bound_consts(str(folder / PARAMETERS))
    return lib


# --- what the manifest says


def _described(name: str, type_: relay.Type) -> dict[str, Any]:
    if not isinstance(type_, relay.TensorType):
        raise FolderError(f"{name} is of type {type_}, and only tensors can be saved")
    shape = [int(length) if isinstance(length, tvm.tir.IntImm) else None for length in type_.shape]
    return {"name": name, "shape": shape, "dtype": type_.dtype}


def _type(described: dict[str, Any]) -> relay.TensorType:
    shape = [relay.Any() if length is None else length for length in described["shape"]]
    return relay.TensorType(shape, described["dtype"])


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _digest_of(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
