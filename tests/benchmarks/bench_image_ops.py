"""Time the image operators, affine warps and rasterisers: `python -m tests.benchmarks.bench_image_ops`.

It runs `bench_warp_affine` and `bench_rasterize`, which say what they time, and versus what.

`--target llvm` (or any other LLVM target) times the CPU instead.
"""

import argparse

from tests.benchmarks import bench_rasterize, bench_warp_affine


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cuda", help="cuda, or a target of LLVM to time the CPU")
    target = ["--target", parser.parse_args().target]
    bench_warp_affine.main(target)
    bench_rasterize.main(target)


if __name__ == "__main__":
    main()
