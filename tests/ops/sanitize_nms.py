"""Batched NMS for NVIDIA's checkers: `compute-sanitizer --tool memcheck python -m tests.ops.sanitize_nms`.

Other tools are racecheck, initcheck and synccheck. Few runs, since each takes long under them.
"""

import sys

import numpy as np

from tests.ops.detections import clustered_detections
from tests.ops.test_batched_nms_cuda import SIZES, check_on_gpu

import tvm


def main():
    if not tvm.cuda().exist:
        sys.exit("needs an NVIDIA GPU")
    for n in [*SIZES, 20_000]:
        for classes in (1, 80):
            check_on_gpu(clustered_detections(n, classes))
    arrays = [np.stack(each) for each in zip(*(clustered_detections(700, 5, seed) for seed in range(3)))]
    valid_count = np.array([0, 300, 700], "int32")
    check_on_gpu(arrays, valid_count=valid_count, score_threshold=0.1, max_output_size=100)
    print("all results are right")


if __name__ == "__main__":
    main()
