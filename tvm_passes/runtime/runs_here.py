"""Whether a compiled folder runs in this process: its files, versions, machine and device."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from topi_ext.bootstrap import tvm_in_use
from topi_ext.bootstrap.find_tvm import RELAY, SWITCH
from topi_ext.onednn import library as onednn

import tvm

from ..analysis.targets import is_for_cpu, is_for_gpu
from ..version import VERSION
from .arrays import is_cuda
from .manifest import PARAMETERS, FolderError, digest_of_file, library_of, networks_of

OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}  # of processors, to LLVM: {its own: Linux's}


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise FolderError if another TVM or version wrote the folder, or its files are not those written."""
    written, used = manifest.get("dialect", RELAY), tvm_in_use.dialect
    if written != used:
        raise FolderError(
            f"{folder} was compiled by a TVM with {written.capitalize()}, and this process has one with "
            f"{used.capitalize()}: set {SWITCH}={written} before it starts, or compile again"
        )
    for name, here in versions().items():
        if manifest["versions"][name] != here:
            found = f"{name} {manifest['versions'][name]}, and this is {here}"
            raise FolderError(f"{folder} was compiled with {found}: compile again")
    for name in (*map(library_of, networks_of(manifest)), PARAMETERS):
        if not (folder / name).is_file():
            raise FolderError(f"{folder} has no {name}: compile again")
        if digest_of_file(folder / name) != manifest["files"].get(name):
            raise FolderError(f"{folder / name} is not the file that was written there: compile again")


def versions() -> dict[str, str]:
    """The versions of the packages that a library may call at run time: TVM and this project."""
    return {"TVM": tvm_in_use.version, "tvm-vision-passes": VERSION}


def check_machine(folder: Path, manifest: dict[str, Any], device: tvm.runtime.Device) -> None:
    """Raise FolderError if the folder was compiled for another machine or device."""
    target = target_of(manifest)
    compiled = f"{folder} was compiled for {target}"
    if is_cuda(device) != is_for_gpu(target):
        raise FolderError(f"{compiled}, not for {device}: leave out the device, or compile for it")
    if manifest["machine"] != platform.machine():
        raise FolderError(f"{compiled}, and this machine is {platform.machine()}: compile for this one")
    if is_for_cpu(target):
        needed = features_of(target) if tvm_in_use.compiles else manifest.get("features", [])
        lacking = set(needed) - _features_here()
        if lacking:
            names = ", ".join(sorted(lacking))
            raise FolderError(f"{compiled}, and this machine lacks {names}: compile for this one")
        if onednn.NAME in target.attrs.get("libs", ()) and onednn.library() is None:
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


def target_of(manifest: Mapping[str, Any]) -> Any:
    """The target that a folder was compiled for; without TVM's compiler, what reading one needs."""
    text = manifest["target"]
    if tvm_in_use.compiles:
        return tvm.target.Target(text)
    attrs = json.loads(text)
    return _Described(attrs, text)


class _Described(SimpleNamespace):
    """A target of Relax by its text."""

    def __init__(self, attrs: dict[str, Any], text: str) -> None:
        super().__init__(kind=SimpleNamespace(name=attrs["kind"]), attrs=attrs, text=text)

    def __str__(self) -> str:
        return str(self.text)


def machine_of(target: tvm.target.Target) -> str:
    """The architecture of the processor, by its name in Linux."""
    name = str(target.attrs.get("mtriple", platform.machine())).partition("-")[0]
    return OTHER_NAMES.get(name, name)


def check_is_for_here(target: tvm.target.Target, caller: str) -> None:
    """Raise ValueError if code for this target, or its host, can neither be linked nor run on this machine.

    TVM fails late, in the linker or in LLVM, which may end the process. A triple such as x86_64 names no
    system, and LLVM then writes what Linux links.
    """
    check_can_be_built(target, caller)
    _check_machine(target, "target", caller)
    if target.host is not None:
        _check_machine(target.host, "target's host", caller)


def check_can_be_built(target: tvm.target.Target, caller: str) -> None:
    """Raise ValueError if this TVM makes nothing that runs for this kind of target."""
    kind = target.kind.name
    if kind == "c":
        raise ValueError(f'{caller}: the target "c" is source code, which nothing here runs: give "llvm"')
    if tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is None:
        raise ValueError(
            f'{caller}: this TVM was built without {kind}: give "llvm" or such as "cuda -arch=sm_90"'
        )


def _check_machine(target: tvm.target.Target, whose: str, caller: str) -> None:
    triple, here = str(target.attrs.get("mtriple", "")), f"{platform.machine()} and {platform.system()}"
    names_system = not {*triple.split("-")[1:]} <= {"unknown"}
    is_of_system = platform.system().lower() in triple if names_system else platform.system() == "Linux"
    if triple and not (machine_of(target) == platform.machine() and is_of_system):
        raise ValueError(
            f"{caller}: the {whose} is for {triple}, and this machine has {here}: compile there, or leave "
            "out -mtriple"
        )


def features_of(target: tvm.target.Target) -> list[str]:
    """The vector extensions that an LLVM target requires, by their names in Linux."""
    names = [str(each) for each in target.attrs.get("mattr", []) if str(each).startswith("+")]
    if target.attrs.get("mcpu"):
        names += [str(each) for each in tvm.get_global_func("target.llvm_get_cpu_features")(target)]
    plain = {_plain(name) for name in names}
    return sorted(name for name in plain if name.startswith(("avx", "fma", "sse")))


def _features_here() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return {_plain(flag) for flag in flags.split()} | {"sse3"}  # Linux calls it pni


def _plain(name: str) -> str:
    return name.lstrip("+").replace("_", "").replace(".", "")
