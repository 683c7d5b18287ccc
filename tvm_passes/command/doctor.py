"""`tvm-passes doctor`: say what this installation can do, and what to install for the rest.

It also runs without TVM or rich, so nothing here imports them at the top.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One requirement: what was found or, if nothing was, what does not work without it and how to get it."""

    name: str
    found: str = ""
    costs: str = ""
    get: str = ""
    needed: bool = False  # for the main job: import a model, apply passes, compile for the CPU, run

    @property
    def is_fatal(self) -> bool:
        return self.needed and not self.found


def run(_args: argparse.Namespace) -> int:
    return doctor()


def doctor() -> int:
    """Print the findings; 0 if the main job can run, else 1."""
    findings = [Finding("Python", f"{platform.python_version()} on {platform.platform()}", needed=True)]
    of_relay, of_jobs = ((), ()) if _has_relax() else ((_llvm,), (_pyarrow, _ray))
    findings += [look() for look in (_tvm, *of_relay, _onednn, _calls, _cudnn, _gpu, _nvcc, _cache)]
    findings += [
        _package("torch", "import PyTorch models", "torch"),
        _package("torchvision", "import its detection models", "torchvision"),
        _package("onnx", "import ONNX models", "onnx"),
        _package("numpy", "do anything", "numpy"),
        _package("rich", "show reports", "rich"),
        _package("PIL", "read images: run, detect, serve", "pillow", needed=False),
        _package("matplotlib", "draw charts: profile --chart", "matplotlib", needed=False),
        *(look() for look in of_jobs),
        _program("C++ compiler", "g++", "save compiled models, test CUDA kernels without a GPU"),
    ]
    _print(findings)
    fatal = [finding.name for finding in findings if finding.is_fatal]
    print(f"The main job cannot run without {', '.join(fatal)}." if fatal else "The main job can run.")
    return 1 if fatal else 0


def _print(findings: list[Finding]) -> None:
    """Print a table or, without rich, lines."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ModuleNotFoundError:
        for finding in findings:
            told = (finding.found,) if finding.found else ("missing", finding.costs, finding.get)
            print(": ".join([finding.name, "; ".join(filter(None, told))]))
        return
    table = Table("")
    for title in ("what", "found", "without it", "how to get it"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        mark = "[green]ok[/]" if finding.found else "[red]missing[/]" if finding.needed else "[yellow]none[/]"
        absent = ("", "") if finding.found else (finding.costs, finding.get)
        table.add_row(mark, *(escape(text) for text in (finding.name, finding.found, *absent)))
    Console().print(table)


def _has_relax() -> bool:
    """Whether there is a TVM, and it is one without Relay."""
    try:
        return not importlib.import_module("topi_ext.bootstrap").tvm_in_use.has_relay
    except (ImportError, OSError):
        return False


def _tvm() -> Finding:
    try:
        in_use = importlib.import_module("topi_ext.bootstrap").tvm_in_use
    except (ImportError, OSError) as reason:
        return Finding("TVM with Relay", "", "nothing works", str(reason), needed=True)
    if in_use.has_relay:
        found = f"{in_use.version}, {in_use.origin}, called through {in_use.ffi}: {in_use.folder}"
        return Finding("TVM with Relay", found, needed=True)
    found = f"{in_use.version}, {in_use.origin}: {in_use.folder}"
    return Finding("TVM with Relax", f"{found}; TVM_PASSES_IR=relay chooses one with Relay", needed=True)


def _llvm() -> Finding:
    """Check that code compiled by LLVM runs, not only that TVM reports an LLVM version."""
    get = "a TVM built with LLVM, such as that of `pip install bitblas==0.1.0`"
    try:
        import numpy

        import tvm
        from tvm import relay
        from tvm.contrib import graph_executor

        x = relay.var("x", shape=(2,))
        built = relay.build(tvm.IRModule.from_expr(relay.Function([x], x + x)), "llvm")
        runtime = graph_executor.GraphModule(built["default"](tvm.cpu()))
        runtime.run(x=tvm.nd.array(numpy.array([1, 2], "float32")))
        doubled = runtime.get_output(0).numpy().tolist()
        assert doubled == [2, 4], f"1 + 1, 2 + 2 gave {doubled}"
        return Finding("LLVM", tvm.support.libinfo()["LLVM_VERSION"] + ", compiles and runs", needed=True)
    except Exception as reason:  # whatever TVM raises is the finding
        costs = f"nothing runs on the CPU ({str(reason).strip().splitlines()[-1]})"
        return Finding("LLVM", "", costs, get, needed=True)


def _onednn() -> Finding:
    costs = "convolutions on CPUs take TVM's own kernels, at half the speed and compiled in minutes"
    try:
        from topi_ext.bootstrap import tvm_in_use
        from topi_ext.conv2d_nhwc.onednn import INSTALL, LIBRARY, version
    except (ImportError, OSError):
        return Finding("oneDNN", "", costs, "a TVM first")
    found = version()
    if found is None:
        return Finding("oneDNN", "", costs, INSTALL)
    threads = "with TVM on its threads" if tvm_in_use.shares_threads else "with threads beside TVM's"
    return Finding(
        "oneDNN", f"{found}, {threads}, for targets with -libs={LIBRARY}, such as topi_ext.cpu_target()"
    )


def _calls() -> Finding:
    name, costs = "calls of oneDNN", "each convolution on CPUs takes 10 us longer, as Python calls oneDNN"
    try:
        from topi_ext.onednn.calls import why_not_remembered
    except (ImportError, OSError):
        return Finding(name, "", costs, "a TVM first")
    reason = why_not_remembered()
    if reason is None:
        return Finding(name, "by compiled code")
    return Finding(name, "", f"{costs}: {reason}", "a C compiler, and install this package anew")


def _gpu() -> Finding:
    costs = "CUDA code compiles but does not run here"
    try:
        from topi_ext.bootstrap.find_libraries import driver_version

        import tvm

        version = driver_version()
        if version is None:
            return Finding("NVIDIA GPU", "", costs, "a GPU of sm_75 or above, and its driver")
        if not tvm.cuda(0).exist:
            return Finding("NVIDIA GPU", "", costs, f"its driver, for CUDA {version}, shows none")
        device = tvm.cuda(0)
        architecture = f"sm_{device.compute_version.replace('.', '')}"
        return Finding("NVIDIA GPU", f"{device.device_name}, {architecture}, driver for CUDA {version}")
    except (ImportError, OSError):
        return Finding("NVIDIA GPU", "", costs, "a TVM first")


def _nvcc() -> Finding:
    return _program("nvcc", "nvcc", "compile for CUDA", "CUDA's toolkit, 12.0 to 13, with nvcc on PATH")


def _cache() -> Finding:
    try:
        from topi_ext.bootstrap import user_cache

        return Finding("kernel cache", user_cache.described())
    except (ImportError, OSError, RuntimeError) as reason:
        return Finding("kernel cache", "", "each kernel is compiled anew each time", str(reason))


def _cudnn() -> Finding:
    """Check that the library is found, not only that its Python package is installed."""
    costs = "convolutions on CUDA use only this project's own kernels"
    try:
        from topi_ext.cudnn.session import LIBRARY, import_cudnn
    except (ImportError, OSError):
        return Finding("cuDNN", "", costs, "a TVM first")
    try:
        cudnn = import_cudnn()
    except ImportError as reason:
        return Finding("cuDNN", "", costs, str(reason))
    found = f"{cudnn.backend_version_string()}, frontend {cudnn.__version__}"
    return Finding("cuDNN", f"{found}, for targets with -libs={LIBRARY}")


def _pyarrow() -> Finding:
    use = "write tables of detections: detect, batch.Detector"
    return _package("pyarrow", use, "pyarrow", 'pip install "tvm-vision-passes[batch]"', needed=False)


def _ray() -> Finding:
    use = "answer requests, or work on several machines: serve, detect --engine ray"
    return _package("ray", use, "ray", 'pip install "tvm-vision-passes[ray]"', needed=False)


def _package(name: str, use: str, distribution: str, get: str | None = None, needed: bool = True) -> Finding:
    try:
        if importlib.util.find_spec(name) is None:  # metadata of an uninstalled package may be left behind
            raise importlib.metadata.PackageNotFoundError
        return Finding(distribution, importlib.metadata.version(distribution), needed=needed)
    except importlib.metadata.PackageNotFoundError:
        get = get or f"pip install {distribution}"
        return Finding(distribution, "", f"cannot {use}", get, needed=needed)


def _program(name: str, program: str, use: str, get: str | None = None) -> Finding:
    path = shutil.which(program)
    if path is None:
        return Finding(name, "", f"cannot {use}", get or f"install {program}")
    run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if any(word in line for word in ("release", "g++"))]
    return Finding(name, f"{(lines or [''])[-1].strip()} ({path})")
