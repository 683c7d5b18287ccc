"""A compiled network in a folder: library, parameters, and a manifest that describes them.

Or several networks, of different batch sizes: each has a library, and its entry in the manifest says which of
the common parameters are its weights. A parameter is named by a digest of its content there.

Nothing is unpickled. But a library is code, which may run when it is loaded: the digests in the manifest
detect damage and mix-ups, not tampering by someone who can write the whole folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topi_ext.bootstrap import tvm_in_use  # before tvm

import tvm

from ..analysis.targets import is_for_cpu, target_of
from ..module_argument import check_module
from . import cuda, runs_here
from .arrays import Array
from .compiled_for import check_module_of, check_target
from .libraries import Library, input_names, module_of, put_in, signature_of, taken_out
from .manifest import (
    MANIFEST,
    ONE,
    PARAMETERS,
    SIZES,
    FolderError,
    described,
    digest_of,
    digest_of_file,
    library_of,
    networks_of,
    read_manifest,
    size_of,
)
from .model import Model, check_options, device_of
from .tensor_type import TensorType

Weights = dict[str, Array]


def save(
    folder: str | os.PathLike[str],
    lib: Library,
    mod: tvm.IRModule,
    target: str | tvm.target.Target,
    about: dict[str, Any] | None = None,
) -> None:
    """Write what `build_library` made of `mod` for `target`; `about` is kept in the manifest, as JSON."""
    folder = _made(folder, target, about, "save")
    network, weights = _written(folder / library_of(None), lib, mod, target)
    _write(folder, {"format": ONE, **network}, weights, target, about)


def save_sizes(
    folder: str | os.PathLike[str],
    networks: Mapping[int, tuple[Library, tvm.IRModule]],
    target: str | tvm.target.Target,
    about: dict[str, Any] | None = None,
) -> None:
    """Write networks for several batch sizes into one folder: by the size, what `save` takes of each.

    In Relay, equal weights are stored once, whichever networks they are of; in Relax, each network has its
    own. `about` is of all of them.
    """
    are_sizes = isinstance(networks, Mapping) and all(map(_is_size, networks))
    are_networks = are_sizes and all(isinstance(each, tuple) and len(each) == 2 for each in networks.values())
    if not are_networks or not networks:
        raise ValueError("save_sizes: give a network for at least one batch size, as {1: (lib, mod)}")
    folder = _made(folder, target, about, "save_sizes")
    sizes, stored = {}, {}
    for size, (lib, mod) in sorted(networks.items()):
        network, weights = _written(folder / library_of(size), lib, mod, target)
        names = {name: _name_by_content(array) for name, array in weights.items()}
        stored.update({names[name]: array for name, array in weights.items()})
        sizes[str(size)] = {**network, "weights": names}
    _write(folder, {"format": SIZES, "sizes": sizes}, stored, target, about)


def load(
    folder: str | os.PathLike[str],
    device: str | tvm.runtime.Device | None = None,
    *,
    batch: int | None = None,
    **options: Any,
) -> Model:
    """The `Model` that was saved, if it is complete and for this machine; `options` are those of `Model`.

    `batch` is one of the sizes that a folder of several was saved for, by `save_sizes` or `tvm-passes compile
    --batch`. `cut=True` is for detectors that return padded outputs and the number of detections. Weights are
    not copied again, unless `copy_weights=True` asks for it.
    """
    return Saved(folder, device).model(batch, **options)


def load_sizes(
    folder: str | os.PathLike[str], device: str | tvm.runtime.Device | None = None, **options: Any
) -> dict[int, Model]:
    """The models that `save_sizes` saved, by batch size; equal weights are in memory once. See `load`."""
    saved = Saved(folder, device)
    sizes = [size for size in networks_of(saved.manifest) if size is not None]
    if not sizes:
        raise FolderError(f"{folder} was not compiled for batch sizes: use load")
    return {size: saved.model(size, **options) for size in sizes}


class Saved:
    """A folder that is complete and for this machine. Its models have the same tensor for equal weights."""

    def __init__(
        self, folder: str | os.PathLike[str], device: str | tvm.runtime.Device | None = None
    ) -> None:
        self._folder = Path(folder)
        self.manifest = read_manifest(folder)
        runs_here.check_files(self._folder, self.manifest)
        self._device = device_of(device or runs_here.target_of(self.manifest).kind.name)
        runs_here.check_machine(self._folder, self.manifest, self._device)
        self._stored = tvm.runtime.load_param_dict((self._folder / PARAMETERS).read_bytes())
        self._weights: Weights = {}  # on the device

    def model(self, batch: int | None = None, **options: Any) -> Model:
        """See `load`."""
        check_options(options, "load")
        size = size_of(self._folder, self.manifest, batch)
        network = networks_of(self.manifest)[size]
        names = network.get("weights", {name: name for name in self._stored})
        weights = {name: self._weight(stored) for name, stored in names.items()}
        if options.get("cut") is True and network["padded_rows"]:
            options["cut"] = network["padded_rows"]
        return Model(
            put_in(self._folder / library_of(size), weights),
            self._device,
            output_names=[output["name"] for output in network["outputs"]],
            input_types={
                each["name"]: TensorType(tuple(each["shape"]), each["dtype"]) for each in network["inputs"]
            },
            **{"copy_weights": False, **options},
        )

    def _weight(self, stored: str) -> Array:
        if stored not in self._weights:
            array = self._stored[stored]
            with cuda.on_device(self._device):
                on_device = array if array.device == self._device else array.copyto(self._device)
            self._weights[stored] = on_device
        return self._weights[stored]


# --- what is written


def _made(
    folder: str | os.PathLike[str],
    target: str | tvm.target.Target,
    about: dict[str, Any] | None,
    caller: str,
) -> Path:
    """The folder, which is made if the rest can be written to it."""
    runs_here.check_is_for_here(target_of(target, caller), caller)
    try:
        json.dumps(about)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{caller}: about must be what JSON can hold, and has another value: {error}"
        ) from error
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be made ({error.strerror}): give another folder") from error
    return Path(folder)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def _written(
    library: Path, lib: Library, mod: tvm.IRModule, target: str | tvm.target.Target
) -> tuple[dict[str, Any], Weights]:
    """What the manifest says of a network, and its weights; the library is written."""
    check_module(mod, "save")
    module, signature = module_of(lib), signature_of(mod)
    if not isinstance(module, tvm.runtime.Module):
        raise TypeError(f"save: lib must be what build_library returns, not {type(lib).__name__}")
    check_target(lib, target_of(target, "save"), "save")
    check_module_of(module, signature, "save")
    with taken_out(module) as (code, weights):
        code.export_library(str(library))
    taken = input_names(module)
    names = signature.output_names or [f"output{index}" for index in range(len(signature.outputs))]
    network = {
        "executor": "graph" if module.implements_function("get_graph_json") else "vm",
        "inputs": [described(name, type_) for name, type_ in signature.inputs.items() if name in taken],
        "outputs": [described(name, type_) for name, type_ in zip(names, signature.outputs)],
        "padded_rows": signature.padded_rows or [],
    }
    return network, weights


def _write(
    folder: Path,
    networks: dict[str, Any],
    weights: Weights,
    target: str | tvm.target.Target,
    about: dict[str, Any] | None,
) -> None:
    """Write weights and manifest, and remove libraries that an earlier manifest has and this one has not."""
    (folder / PARAMETERS).write_bytes(tvm.runtime.save_param_dict(weights))
    before: set[str] = set()
    with contextlib.suppress(FolderError):
        before.update(map(library_of, networks_of(read_manifest(folder))))
    target, libraries = target_of(target, "save"), [*map(library_of, networks_of(networks))]
    manifest = {
        **networks,
        "dialect": tvm_in_use.dialect,
        "versions": runs_here.versions(),
        "target": str(target),
        **({"features": runs_here.features_of(target)} if is_for_cpu(target) else {}),
        "machine": runs_here.machine_of(target),
        "files": {name: digest_of_file(folder / name) for name in (*libraries, PARAMETERS)},
        "about": about or {},
    }
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for library in before.difference(libraries):
        (folder / library).unlink(missing_ok=True)


def _name_by_content(array: Array) -> str:
    """A digest of the type, the shape and the bytes."""
    return hashlib.sha256(tvm.runtime.save_param_dict({"": array})).hexdigest()
