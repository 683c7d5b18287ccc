"""Time whole networks versus their peers: `python -m tests.benchmarks.bench_models`.

On a GPU, the peer is torch. Each network is prepared in a process of its own, all at once; when all are
ready, or the time for it is over, they are timed one after the other. A second table has each kernel that
takes over 3% of its network's time and over three times its floor, and the benchmark fails unless a reason is
known for each of them.

`--target native`, or a target of LLVM, times the CPU: peers are torch, `torch.compile`, ONNX Runtime and
OpenVINO, which are left out where they are not installed. Each network has a process of its own for each
number of threads, in which ours and its peers take turns. The benchmark fails if ours does not compute what
torch does.
"""

import argparse
import time
import warnings
from pathlib import Path

from tests.benchmarks import _common as common
from tests.benchmarks import _models_on_cpu, _models_on_gpu
from tests.benchmarks._models import ON_CPU, ON_GPU
from tests.benchmarks._peers import DTYPES, PEERS


def main():
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    on_gpu = args.target == "cuda"
    networks = ON_GPU if on_gpu else ON_CPU
    args.names = [
        name
        for name in networks
        if not args.only or any(name == of if of in networks else of in name for of in args.only)
    ]
    if not args.names:
        raise SystemExit("None of the networks has such a name.")
    if on_gpu:
        common.require_gpu()
    if args.one and on_gpu:
        _models_on_gpu.measure(args.one, args.to, time.monotonic() + args.seconds)
    elif args.one:
        _models_on_cpu.measure(args.one, args)
    else:
        (_models_on_gpu if on_gpu else _models_on_cpu).run(args)


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    targets = "cuda; native, which is topi_ext.cpu_target(); or a target of LLVM; %(default)s"
    parser.add_argument("--target", default="cuda", help=targets)
    parser.add_argument("--only", action="append", help="networks of this name, or with it in theirs")
    parser.add_argument("--raw", type=Path, help="write all that was measured there, as JSON")
    limit = "to prepare all networks on a GPU, or each peer on a CPU; %(default)s"
    parser.add_argument("--seconds", type=float, default=400, help=limit)
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--modes", default="default", help="of torch.compile, with commas; none: no torch")
    gpu.add_argument("--add", type=Path, help="to the report, what an earlier run wrote by --raw")
    gpu.add_argument("--tune", action="store_true", help="take the fastest of cuDNN's plans")
    cpu = parser.add_argument_group("on a CPU")
    cpu.add_argument("--threads", default="1,2", help="numbers of threads, with commas; %(default)s")
    at_once = "networks that are measured at the same time, each on cores of its own; %(default)s"
    cpu.add_argument("--at-once", type=int, default=1, help=at_once)
    cpu.add_argument("--dtype", default="float32", choices=DTYPES, help="%(default)s")
    cpu.add_argument("--peers", default=",".join(PEERS), help="with commas; %(default)s")
    cpu.add_argument("--stock", action="store_true", help="stock TVM too, which compiles for minutes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
