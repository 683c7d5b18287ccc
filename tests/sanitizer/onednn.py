"""Run operators by oneDNN under valgrind: `python -m tests.sanitizer.onednn`.

It sees every access of oneDNN, of TVM and of compiled kernels, and fails if one is outside of what was
allocated. Operators are compiled first, without it, for a processor that it knows; a run takes minutes.
"""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.ops import convolutions
from tests.ops.convolutions import ACTIVATED, CASES, DEPTHWISE, GROUPED, Case, in_float32

import tvm
from tvm import relay
from tvm.contrib import graph_executor

TARGET = "llvm -mcpu=haswell -libs=onednn"  # valgrind has no AVX-512
ENVIRONMENT = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", "PYTHONMALLOC": "malloc"}
OUTSIDE = re.compile(r"Invalid (?:read|write)")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
RUN = "--run"
# The loader of glibc compares strings eight bytes at a time.
SUPPRESSED = """{
   loader
   Memcheck:Addr8
   fun:strncmp
   fun:is_dst
}
"""


def main():
    if RUN in sys.argv:
        return run(Path(sys.argv[-1]))
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed.")
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        log, suppressed = Path(folder) / "valgrind.txt", Path(folder) / "suppressed.txt"
        suppressed.write_text(SUPPRESSED)
        options = ["--error-limit=no", f"--suppressions={suppressed}", f"--log-file={log}"]
        command = ["valgrind", *options, sys.executable, "-m", "tests.sanitizer.onednn", RUN, folder]
        subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=True)
        report = log.read_text()
    found = OUTSIDE.search(report)
    if found:
        sys.exit(report[found.start() :][:4000])
    print("No access outside of what was allocated.")


def build(folder):
    """Compile each operator, with its inputs and what it is to compute."""
    for number, (function, arrays, expected) in enumerate(operators()):
        lib = relay.build(tvm.IRModule.from_expr(function), TARGET)
        lib.export_library(str(folder / f"{number}.so"))
        (folder / f"{number}.pickle").write_bytes(pickle.dumps((arrays, expected)))


def operators():
    by_winograd = Case(
        (21, 19), 64, 64, dtype="float32", **convolutions.options(activation="relu", padding=1)
    )
    for case in [*map(in_float32, CASES + GROUPED + DEPTHWISE + ACTIVATED), by_winograd]:
        arrays = case.arrays()
        yield case.function(arrays), arrays, case.expected(arrays)
    x, y = relay.var("x", shape=(2, 5, 7)), relay.var("y", shape=(2, 9, 7))
    arrays = {
        "x": np.linspace(-1, 1, 70, dtype="float32").reshape(2, 5, 7),
        "y": np.linspace(-2, 1, 126, dtype="float32").reshape(2, 9, 7),
    }
    product = np.einsum("bij,bkj->bik", arrays["x"], arrays["y"])
    yield relay.Function([x, y], relay.nn.batch_matmul(x, y)), arrays, product


def run(folder):
    """Twice each: the first call prepares weights, the second one finds them."""
    for path in sorted(folder.glob("*.so")):
        arrays, expected = pickle.loads(path.with_suffix(".pickle").read_bytes())
        executor = graph_executor.GraphModule(tvm.runtime.load_module(str(path))["default"](tvm.cpu()))
        for _ in range(2):
            executor.run(**arrays)
            np.testing.assert_allclose(executor.get_output(0).numpy(), expected, **CLOSE)
        print(f"{path.stem} is right", flush=True)


if __name__ == "__main__":
    main()
