"""Compile CUDA C++ with g++ into a library that TVM can load as a module.

The source stays as it is, but for what no header can express: shared memory belongs to a block and not to
a thread, and the name of a kernel becomes that of the packed function which launches it. Lines keep their
numbers, so that reports point into the CUDA source.
"""

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

RUNTIME = Path(__file__).with_name("runtime")
SANITIZERS = {
    None: [],
    "address": [
        "-fsanitize=kernel-address",
        *("--param", "asan-instrumentation-with-call-threshold=0"),
        *("--param", "asan-stack=0"),
        *("--param", "asan-globals=0"),
        "-DEMULATED_ATOMIC=emulator::emulator_atomic_address",
    ],
    "thread": ["-fsanitize=thread", "-DEMULATED_ATOMIC=emulator::emulator_atomic_thread"],
}
LAUNCH_TAGS = {  # of the attribute tir.kernel_launch_params, and what launch.h calls them
    "blockIdx.x": "0",
    "blockIdx.y": "1",
    "blockIdx.z": "2",
    "threadIdx.x": "3",
    "threadIdx.y": "4",
    "threadIdx.z": "5",
    "tir.use_dyn_shared_memory": "s",
}

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s*)?(\w+)\s*\(")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s*)?([\w:\s]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_SHARED = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\(\d+\)\s*)?([\w:<>\s]+?)\s+(\w+)\s*((?:\[[^\]]*\]\s*)*);"
)


class CannotEmulate(Exception):
    """This machine lacks something that the emulated device needs; the message says what."""


def compile_source(source, launch_params, sanitize=None, flags=(), arch=800) -> Path:
    """The library with a packed function for each kernel in `launch_params` (name -> list of launch tags)."""
    if sanitize not in SANITIZERS:
        raise ValueError(f"sanitize is one of {list(SANITIZERS)}, not {sanitize!r}")
    bounds = {name: int(bound or 0) for bound, name in _KERNEL.findall(source)}
    launchers = []
    for name, params in launch_params.items():
        if name not in bounds:
            raise ValueError(f"no kernel {name!r} in the source, only {sorted(bounds)}")
        tags = "".join(LAUNCH_TAGS[param.replace("tirx.", "tir.")] for param in params)
        launchers.append(f'EMULATED_KERNEL({name}, {bounds[name]}, "{tags}")')
    options = [
        *("-std=c++17", "-fPIC", "-O1", "-g1", "-w"),
        *("-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-optimize-sibling-calls"),
        # calls of the emulator: in every basic block, and for what goes wrong in any mode
        *("-fsanitize-coverage=trace-pc", "-fsanitize=bounds,integer-divide-by-zero"),
        *SANITIZERS[sanitize],
        *(f"-D__CUDA_ARCH__={arch}", f"-I{RUNTIME / 'system_headers'}"),
        *flags,
    ]
    header = str(_precompiled_header(tuple(options)))
    command = [_compiler(), "-x", "c++", *options, "-include", header, "-c"]
    return _build(_as_cpp(source) + "\n" + "\n".join(launchers), command)


@cache
def _precompiled_header(options) -> Path:
    """`cuda_builtins.h` for these options: to read it takes g++ as long as to compile a small kernel."""
    header = Path(tempfile.mkdtemp(dir=_folder()), "cuda_builtins.h")
    header.write_text(f'#include "{RUNTIME / header.name}"\n')  # for a g++ that cannot take it compiled
    _run([_compiler(), "-x", "c++-header", *options, header, "-o", f"{header}.gch"])
    return header


@cache
def emulator_library() -> Path:
    """The emulator itself: scheduler, memory of the device, checks."""
    sources = [str(path) for path in sorted(RUNTIME.glob("*.cpp"))]
    library = _folder() / "libemulator.so"
    _run(
        [
            _compiler(),
            "-std=c++17",
            "-shared",
            "-fPIC",
            "-O2",
            "-U_FORTIFY_SOURCE",
            *sources,
            "-o",
            library,
            "-ldl",
        ]
    )
    return library


def _as_cpp(source):
    source = re.sub(r'extern\s+"C"\s+(?=__global__)', "", source)
    source = _DYNAMIC_SHARED.sub(r"\1* \2 = emulated_dynamic_shared<\1>();", source)
    slots = iter(range(len(source)))

    def declare(match):
        element, name, extents = match.groups()
        return f'auto& {name} = emulated_shared<{element}{extents}>({next(slots)}, "{name}");'

    source = _SHARED.sub(declare, source)
    if "__shared__" in source:
        raise ValueError("unknown form of shared memory: declare each array as `__shared__ type name[n];`")
    return source


def _build(text, command):
    text += "\nvoid (*__TVMAPISetLastError)(const char*);\n"
    key = hashlib.sha256("\0".join([*command, text]).encode()).hexdigest()[:20]
    source, compiled, library = (_folder() / f"{key}.{end}" for end in ("cu", "o", "so"))
    if not library.exists():
        source.write_text(text)
        _run([*command, source, "-o", compiled])
        # Linked without the sanitizer's flag, which would ask for its own runtime.
        _run([_compiler(), "-shared", compiled, emulator_library(), f"-Wl,-rpath,{_folder()}", "-o", library])
    return library


def _run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            "g++ cannot compile the CUDA source. If it lacks a function of CUDA, add it to "
            f"runtime/cuda_builtins.h; inline PTX is out of reach.\n{done.stderr[-4000:]}"
        )


@cache
def _compiler():
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or "clang" in compiler:
        raise CannotEmulate("the emulated CUDA device needs g++ (Debian and Ubuntu: apt-get install g++)")
    return compiler


@cache
def _folder():
    folder = Path(tempfile.mkdtemp(prefix="cuda_on_cpu_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
