"""Time networks and operators in Relax: `python -m tests.benchmarks.bench_relax`.

On a CPU, detectors with and without the passes, beside torch: it takes some minutes with TVM 0.27, under
`OMP_NUM_THREADS=1`, most of them without the passes, and prints the results file.

On a GPU, beside Relay, in two steps. `--compile FOLDER`, where TVM 0.27 has its compiler, and no GPU is
needed, writes what `--target cuda FOLDER` times, in a process with Relay. A second process has TVM 0.27, of
which the runtime is enough (`TVM_USE_RUNTIME_LIB=1`); the two take turns.
"""

import argparse
import sys
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="of what is compiled for a GPU")
    parser.add_argument("--target", choices=["llvm", "cuda"], default="llvm", help="%(default)s")
    parser.add_argument("--compile", action="store_true", help="what --target cuda times")
    python = "command that starts Python with TVM 0.27, in words; by default this Python"
    parser.add_argument("--relax-python", nargs="+", default=[sys.executable], help=python)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        from tests.benchmarks import _relax_served

        _relax_served.serve(args.folder)
    elif args.compile:
        from tests.benchmarks import _relax_compiled

        _relax_compiled.compile_into(args.folder)
    elif args.target == "cuda":
        from tests.benchmarks import _relax_on_gpu

        _relax_on_gpu.run(args)
    else:
        from tests.benchmarks import _relax_on_cpu

        _relax_on_cpu.main()


if __name__ == "__main__":
    main()
