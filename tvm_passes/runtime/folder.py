"""A compiled network in a folder: library, parameters, and a manifest that says what they are.

Nothing is unpickled. A library is code, though, which loading it may run: the digests in the manifest find
damage and mix-ups, not what someone did who can write the whole folder.
"""

import hashlib
import json
import platform
from pathlib import Path

from topi_ext._bootstrap import tvm_in_use

import tvm
from tvm import relay
from tvm.runtime.vm import Executable

from .model import Model

FORMAT = 1
MANIFEST, LIBRARY, PARAMETERS = "manifest.json", "library.so", "parameters.bin"
LEAST_BYTES = 1024  # of a constant of the virtual machine that goes with the parameters


class FolderError(ValueError):
    """One sentence: why a folder cannot be run here, and what to do about it."""


def save(folder, lib, mod, target, about=None):
    """Write what `build_library` made of `mod` for `target`; `about` goes into the manifest as it is, as JSON."""
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
        "tvm": tvm_in_use.version,
        "target": str(target),
        "machine": platform.machine(),
        "executor": "graph" if is_graph else "vm",
        "inputs": [_described(param.name_hint, param.checked_type) for param in main.params],
        "outputs": [_described(str(name), type_) for name, type_ in zip(names, results)],
        "padded_rows": [[int(part) for part in rows] for rows in attrs.get("padded_rows") or []],
        "files": {name: _digest(folder / name) for name in (LIBRARY, PARAMETERS)},
        "about": about or {},
    }
    manifest["sha256"] = _digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def load(folder, device=None, **options):
    """The `Model` that was saved, if it is whole and for this machine; `options` are those of `Model`.

    `cut=True` is for detectors that return padded outputs and their number.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    _check_files(folder, manifest)
    device = device or str(_device_for(manifest))
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


def read_manifest(folder):
    """The manifest of a folder that `save` wrote, if this version can read it."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {MANIFEST}: give a folder that was compiled to") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read ({error}): compile again") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FolderError(f"{path} is no manifest of a compiled folder: compile again")
    if manifest["format"] != FORMAT:
        raise FolderError(
            f"{folder} has the format {manifest['format']}, and this version reads {FORMAT}: compile again"
        )
    if manifest.pop("sha256", None) != _digest_of(manifest):
        raise FolderError(f"{path} was changed after it was written: compile again")
    return manifest


def _check_files(folder, manifest):
    if manifest["tvm"] != tvm_in_use.version:
        raise FolderError(
            f"{folder} was compiled with TVM {manifest['tvm']}, and this is {tvm_in_use.version}: compile again"
        )
    for name, digest in manifest["files"].items():
        if not (folder / name).is_file():
            raise FolderError(f"{folder} has no {name}: compile again")
        if _digest(folder / name) != digest:
            raise FolderError(f"{folder / name} is not the file that was written there: compile again")


def _device_for(manifest):
    """The first device of the target's kind, if it is one that the target's code runs on."""
    target = tvm.target.Target(manifest["target"])
    kind = target.kind.name
    if manifest["machine"] != platform.machine():
        raise FolderError(f"it was compiled on {manifest['machine']}, and this is {platform.machine()}: compile here")
    device = tvm.device(kind)
    if kind == "llvm":
        lacking = _features(target) - _features_here()
        if lacking:
            raise FolderError(
                f"it was compiled for {manifest['target']}, and this machine lacks {', '.join(sorted(lacking))}: "
                "compile here"
            )
        return device
    if not device.exist:
        raise FolderError(f"it was compiled for {manifest['target']}, and there is no such device here")
    wanted, found = str(target.attrs.get("arch", "")), device.compute_version
    if kind == "cuda" and wanted and found and not wanted.startswith(f"sm_{found.replace('.', '')}"):
        here = f"sm_{found.replace('.', '')}"
        raise FolderError(f'it was compiled for {wanted}, and this GPU is {here}: compile for "cuda -arch={here}"')
    return device


def _features(target):
    """What a target of LLVM takes for granted of vector instructions, by the names that Linux gives them."""
    names = [str(each) for each in target.attrs.get("mattr", []) if str(each).startswith("+")]
    if target.attrs.get("mcpu"):
        names += [str(each) for each in tvm.get_global_func("target.llvm_get_cpu_features")(target)]
    plain = {_plain(name) for name in names}
    return {name for name in plain if name.startswith(("avx", "fma", "sse"))}


def _features_here():
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    flags = next((line.partition(":")[2] for line in text.splitlines() if line.startswith("flags")), "")
    return {_plain(flag) for flag in flags.split()} | {"sse3"}  # which Linux calls pni


def _plain(name):
    return name.lstrip("+").replace("_", "").replace(".", "")
