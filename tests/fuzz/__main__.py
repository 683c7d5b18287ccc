"""Make networks, and compare what every pipeline leaves of each with PyTorch, ONNX Runtime and stock TVM.

    python -m tests.fuzz --minutes 10 --seed 1 --jobs 2     # networks of any operators, by NNSmith
    python -m tests.fuzz --own --models 1000                # idioms that the passes look for, by hypothesis

What is wrong is made small and kept in `tests/fuzz/found`, all of which `test_found.py` runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .campaign import Campaign

FOUND = Path(__file__).parent / "found"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--own", action="store_true", help="idioms of our own, which need torch and TVM only")
    parser.add_argument("--minutes", type=float, help="stop after these; by default only --models does")
    parser.add_argument("--models", type=int, help="stop after so many; 100 if there are no --minutes either")
    parser.add_argument("--seed", type=int, default=0, help="of the first model; those after it count up")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument(
        "--frontend", choices=("onnx", "pytorch"), help="by default ONNX, every fourth model PyTorch"
    )
    parser.add_argument(
        "--target", default="llvm", help="cuda, or such as 'llvm -opt-level=0', which compiles sooner"
    )
    parser.add_argument(
        "--stock", type=int, default=10, help="stock TVM runs each Nth model, and what is wrong"
    )
    parser.add_argument("--seconds", type=float, default=120, help="a model that takes longer hangs")
    parser.add_argument("--found", type=Path, default=FOUND, help="where to keep what is wrong")
    options = parser.parse_args(arguments)
    if options.minutes is None and options.models is None:
        options.models = 100
    campaign = Campaign(options)
    campaign.run()
    campaign.print_summary()
    return 1 if campaign.to_mend else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # NNSmith goes through sets
        arguments = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
